#!/bin/busybox sh
# Process 1 of kinst's own guest.  One serial port has the kernel's messages and nothing else, one
# the output of the -c command, one the conversation with kinst, a line at a time:
#
#   kinst                      guest
#                              ready
#   prepare HEX(command)       pid N [M]      the process exists and is held; M is the process that
#                                             passes its output on, where there is one
#   prepare HEX ROWS COLUMNS   pid N          the same; it gets the output port as its terminal
#   go                                        it runs; all it writes is on the output port
#                              exit STATUS    it ended and its output has left that port
#   go alone                                  the same, but no process of this script does anything
#                                             from the command's execve on, until:
#   on                                        they go on: the command has ended
#   mount TAG [HEX(folder)]                   a folder of the host is mounted there, to be written;
#                              mounted        without a folder it is what commands have as root
#   clock SECONDS              clock          it is set to that time of day (since 1970)
#   resize ROWS COLUMNS                       its terminal's size
#   signal N                                  signal N to the command, also before go
#   end                                       the command and all that it has made are killed
#                              ended          there is none any more; "exit" came before this
#   poweroff                                  the machine ends
#                              error TEXT     the request made no sense
#
# Then another command may be prepared.  kinst answers nothing; "exit" comes when it comes, so
# requests are read while a command runs.
# A shell status above 128 is a signal's number plus 128, as in sh(1).
#
# With an initrd of the user's (kinst_init is what is process 1 there) this is a helper beside: it
# lives in a tmpfs of its own, which remains when another root is switched to, and its commands run
# in the root that process 1 has by then.

if [ -n "$kinst_init" ]; then
    home=/.kinst/home
    box=/.kinst/busybox
    $box mkdir -p $home && $box mount -t tmpfs kinst $home
    $box mkdir $home/bin $home/dev $home/proc $home/run
    $box cp $box $home/bin/busybox
    $box cp /.kinst/init $home/init
    $box cp -a /.kinst/dev/. $home/dev
    $box mount -t proc proc $home/proc
    # The shell gives it to what runs in the background.
    [ -e /dev/null ] || { $box mkdir -p /dev && $box cp -a /.kinst/dev/null /dev/null; }
    next=$kinst_init
    unset kinst_init
    kinst_before=$($box stat -c %d:%i /) $box chroot $home /bin/busybox sh /init beside \
        <$home/dev/null >$home/dev/null 2>&1 &
    unset kinst_output kinst_control
    exec "$next" "$@"
fi

export PATH=/bin HOME=/ TERM=dumb
# From the kernel's command line, which has them of kinst; commands are not to see them.
OUTPUT=/dev/${kinst_output:-ttyS1}
CONTROL=/dev/${kinst_control:-ttyS2}
unset kinst_output kinst_control

/bin/busybox --install -s /bin

set_up() {
    mount -t devtmpfs dev /dev
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    mount -t tmpfs tmp /tmp
    mount -t tmpfs run /run
    mount -t tracefs trace /sys/kernel/tracing
    # debugfs mounts a second view of tracefs below itself, where older scripts look for it.
    mount -t debugfs debug /sys/kernel/debug
    mkdir -p /dev/pts /dev/shm
    mount -t devpts pts /dev/pts
    mount -t tmpfs shm /dev/shm
    ln -s /proc/self/fd /dev/fd
    ifconfig lo 127.0.0.1 up
    hostname kinst

    for module in /lib/kinst/*.ko; do
        [ -e "$module" ] && insmod "$module"
    done
}

[ "$1" = beside ] && beside=yes || { beside= && set_up; }

# Held open for good: the last close of a serial port waits, and may lose the raw mode.
exec 3<>"$OUTPUT" 4<>"$CONTROL"
stty -F "$OUTPUT" raw -echo 115200
stty -F "$CONTROL" raw -echo 115200

say() {
    echo "$*" >&4
}

# Wait until that process has passed on all that there is: it has ended, or, where something that the
# command has left behind holds the pipe, waits in read(0) for more (proc(5), syscall).
wait_passed() {
    while [ -e "/proc/$1" ]; do
        descriptor=
        read -r _ descriptor _ <"/proc/$1/syscall" || sleep 0.1
        [ "$descriptor" != 0x0 ] || return 0
        sleep 0.01
    done
}

# Wait until the system of the user's initrd is up: it has switched to the root that the kernel was
# told of, has mounted /proc, and systemd, where that is there, has started what it starts.
wait_system() {
    there=/proc/1/root/.
    case " $(cat /proc/cmdline) " in
    *' root='*) while [ "$(stat -c %d:%i $there)" = "$kinst_before" ]; do sleep 0.1; done ;;
    esac
    while ! [ -e $there/proc/self ]; do sleep 0.1; done
    while [ -d $there/run/systemd/system ]; do
        case "$(chroot $there systemctl is-system-running)" in
        '' | initializing | starting | offline) sleep 0.5 ;;
        *) return ;;
        esac
    done
}

# The environment of commands in another root; those of the host's bring their own.
fresh='env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb'

# The same in this shell, so that the command's first system call is that of its shell.
clear_environment() {
    export -p >/run/environment
    while IFS=" =" read -r _ name _; do
        unset "$name"
    done </run/environment
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
    rm -f /run/environment
}

# What is said to the kernel of a terminal's end: all that has the port open is cut off from it.  So
# the command's last output has left before this shell, the leader of its session, ends.
on_terminal='
    if [ -n "$2" ]; then $4 chroot "$2" /bin/sh -c "$3"; else sh -c "$3"; fi
    status=$?
    stty -F "$1" -echo
    exit $status
'

# is_in STATE PROCESS: whether it is in that state (proc(5), stat).
is_in() {
    state=
    read -r _ _ state _ <"/proc/$2/stat"
    [ "$state" = "$1" ]
}

# hold_helpers PROCESS [PASSER]: stop the process that waits for the command, and return when all
# others of this script wait for kinst.  A process that has been woken may not have run yet: it is
# still seen to wait, so they are looked at twice.
hold_helpers() {
    echo "$1" >/run/stopped
    kill -s STOP "$1"
    read -r listener </run/listener
    read -r server </run/server
    calm=0
    while [ "$calm" -lt 2 ]; do
        calm=$((calm + 1))
        is_in T "$1" && is_in S "$listener" && is_in S "$server" || calm=0
        [ -z "$2" ] || is_in S "$2" || calm=0
        [ "$calm" -gt 0 ] || sleep 0.01
    done
}

# Let the process that hold_helpers stopped go on.
go_on() {
    if [ -e /run/stopped ]; then
        read -r helper </run/stopped
        rm -f /run/stopped
        kill -s CONT "$helper"
    fi
}

# One command, from a held process to its exit line.  The held shell execs another, which execs
# the command when it is a simple one: all have the process id that was announced.  The fifo is
# opened for reading and writing by both sides, so that neither can hang in opening it.
run() {
    # The shell's own "Killed" and "Terminated" are not the command's output.
    exec 2>/dev/null
    root=
    [ ! -e /mnt/root/proc/self ] || root=/mnt/root
    [ -z "$beside" ] || { wait_system && root=/proc/1/root/.; }
    passer=
    if [ -n "$2" ]; then
        stty -F "$OUTPUT" sane rows "$2" columns "$3"
        exec 6>&3
    elif [ -n "$root" ]; then
        # Through a pipe: on a terminal, programs of the host would use colours and pagers.
        mkfifo /run/output
        (
            cat </run/output >&3 4>&- &
            echo "$!" >/run/passer
        )
        read -r passer </run/passer
        exec 6>/run/output
        rm -f /run/output /run/passer
    else
        exec 6>&3
    fi
    (
        exec 2>&6 5<>/run/go
        read -r pid _ _ parent _ </proc/self/stat
        echo "$pid" >/run/held
        say "pid $pid $passer"
        read -r alone <&5
        [ -n "$2" ] || [ -z "$root" ] || clear_environment
        # The name that it has until its execve has set another.
        echo -n sh >/proc/self/comm
        [ -z "$alone" ] || hold_helpers "$parent" "$passer"
        if [ -n "$2" ]; then
            exec setsid -c sh -c "$on_terminal" sh "$OUTPUT" "$root" "$1" "$fresh" \
                <&3 >&3 2>&3 3>&- 4>&- 5>&- 6>&-
        elif [ -n "$root" ]; then
            exec chroot "$root" /bin/sh -c "$1" 3>&- 4>&- 5>&- 6>&-
        fi
        exec sh -c "$1" 3>&- 4>&- 5>&- 6>&-
    ) </dev/null >&6
    status=$?
    exec 6>&-
    [ -z "$passer" ] || wait_passed "$passer"
    # stty changes nothing here but sets modes with TCSADRAIN: it returns when the port is empty.
    stty -F "$OUTPUT" raw -echo
    rm -f /run/held /run/go
    say "exit $status"
    rm -f /run/busy
}

# Every command that is to be run, one after the other.  None is put into the background: there the
# shell would have it ignore SIGINT.
serve() {
    read -r pid _ </proc/self/stat
    echo "$pid" >/run/server
    while read -r command rows columns; do
        # The x keeps newlines at the end, which $( ) would drop.
        command=$(echo "$command" | xxd -r -p; echo x)
        (run "${command%x}" "$rows" "$columns")
        exec 3<>"$OUTPUT"
    done
}

# mount_tag OPTIONS TAG FOLDER.  The device may have been put in just now: a kernel that takes no
# notice of that is made to look.
mount_tag() {
    wait=100
    until message=$(mount -t virtiofs $1 "$2" "$3" 2>&1); do
        [ $((wait -= 1)) -gt 0 ] && grep -q virtiofs /proc/filesystems || break
        [ $((wait % 10)) != 5 ] || echo 1 >/sys/bus/pci/rescan
        sleep 0.05
    done
    [ -z "$message" ] || { echo "$message"; false; }
}

# The host's folder is not written to: what commands change is kept in memory, in an overlay.
# Their devices, processes and sockets are this machine's.
mount_root() {
    mkdir -p /mnt/host /mnt/changes /mnt/root
    mount_tag '-o ro' "$1" /mnt/host && mount -t tmpfs changes /mnt/changes || return
    mkdir /mnt/changes/files /mnt/changes/work
    mount -t overlay -o lowerdir=/mnt/host,upperdir=/mnt/changes/files,workdir=/mnt/changes/work \
        root /mnt/root || return
    # An overlay opens with O_NOATIME, which a virtiofsd without root's rights may not do to files of
    # others: then there is no overlay, and what is written to are temporary folders.
    if head -c 1 /mnt/host/bin/sh && ! head -c 1 /mnt/root/bin/sh; then
        umount /mnt/root && mount --bind /mnt/host /mnt/root || return
        for folder in tmp var/tmp; do
            mount -t tmpfs tmp "/mnt/root/$folder" || return
        done
    fi >/dev/null
    for folder in dev proc sys run; do
        mkdir -p "/mnt/root/$folder" && mount --rbind "/$folder" "/mnt/root/$folder" || return
    done
}

mount_writable() {
    mkdir -p "$ROOT$2" && mount_tag '' "$1" "$ROOT$2"
}

ROOT=

listen() {
    read -r pid _ </proc/self/stat
    echo "$pid" >/run/listener
    while read -r verb argument <&4; do
        case "$verb" in
        prepare)
            if [ -e /run/go ] || [ -e /run/held ]; then
                say "error a command is already prepared"
            else
                mkfifo /run/go
                : >/run/busy
                # To serve: a child that ends while this shell is in read makes busybox forget the
                # part of the line that it had.
                echo "$argument"
            fi
            ;;
        go)
            if [ -e /run/go ]; then
                exec 7<>/run/go
                rm -f /run/go
                echo "$argument" >&7
                exec 7>&-
            else
                say "error no command is prepared"
            fi
            ;;
        on)
            go_on
            ;;
        mount)
            tag=${argument%% *}
            if [ "$tag" = "$argument" ]; then
                why=$(mount_root "$tag" 2>&1) && ROOT=/mnt/root
            else
                folder=$(echo "${argument#* }" | xxd -r -p)
                why=$(mount_writable "$tag" "$folder" 2>&1)
            fi
            if [ "$?" = 0 ]; then say mounted; else say error $why; fi
            ;;
        clock)
            date -s "@$argument" >/dev/null
            say clock
            ;;
        resize)
            stty -F "$OUTPUT" rows "${argument% *}" columns "${argument#* }"
            ;;
        signal)
            if [ -e /run/held ]; then
                kill -s "$argument" "$(cat /run/held)"
            else
                say "error no command is prepared"
            fi
            ;;
        end)
            if [ -e /run/held ]; then
                # Stopped first, so that they make no more while those that they have made are found.
                all=
                read -r next </run/held
                while [ -n "$next" ]; do
                    kill -s STOP $next
                    all="$all $next"
                    more=
                    for process in $next; do
                        for file in /proc/$process/task/*/children; do
                            children=
                            read -r children <"$file"
                            more="$more$children"
                        done
                    done
                    next=$more
                done
                kill -s KILL $all
            fi 2>/dev/null
            go_on
            while [ -e /run/busy ]; do sleep 0.01; done
            rm -f /run/go
            say ended
            ;;
        poweroff)
            poweroff -f
            ;;
        *)
            say "error unknown request: $verb"
            ;;
        esac
    done
    # The control port has ended: there is nobody any more.
    poweroff -f
}

say ready
listen | serve
