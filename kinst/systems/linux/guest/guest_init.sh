#!/bin/busybox sh
# Process 1 of a guest with kinst's own initrd.  One serial port carries only the kernel's messages,
# one the output of the -c command, and one the conversation with kinst, one line a message:
#
#   kinst                      guest
#                              refused MODULE: REASON    before "ready": the kernel did not load it
#                              ready
#   prepare HEX(command)       pid N [M]      the process exists, and is held; M is the process that
#                                             passes its output on, if there is one
#   prepare HEX ROWS COLUMNS   pid N          the same, with the output port as its terminal
#   go                                        the command runs; its output goes to the output port
#                              exit STATUS    it has ended, and all its output has left that port
#   go alone                                  the same, but no process of this script does anything
#                                             from the command's execve on, until:
#   on                                        these processes go on: the command has ended
#   mount TAG [HEX(folder)]                   mount a folder of the host at this folder, writable;
#                              mounted        without a folder, mount it as the root of commands
#   clock SECONDS              clock          set the time of day (seconds since 1970)
#   resize ROWS COLUMNS                       set the terminal's size
#   signal N                                  send signal N to the command, also before go
#   end                                       kill the command and all its descendants
#                              ended          they have ended; "exit" came before this
#   poweroff                                  end the machine
#                              error TEXT     the request was wrong
#
# Afterwards another command may be prepared.  kinst sends no answers.  "exit" may come at any time,
# since requests are read while a command runs.
# A status above 128 is 128 plus a signal's number, as in sh(1).
#
# With the user's initrd, kinst_init is set to the user's init, and this script is a helper: the
# user's init is process 1.  The helper lives in a tmpfs of its own, which stays mounted when the
# system switches to another root, and runs commands in the root that process 1 has then.

if [ -n "$kinst_init" ]; then
    home=/.kinst/home
    box=/.kinst/busybox
    $box mkdir -p $home && $box mount -t tmpfs kinst $home
    $box mkdir $home/bin $home/dev $home/proc $home/run
    $box cp $box $home/bin/busybox
    $box cp /.kinst/init $home/init
    $box cp -a /.kinst/dev/. $home/dev
    $box mount -t proc proc $home/proc
    # The shell opens it as the input of background processes.
    [ -e /dev/null ] || { $box mkdir -p /dev && $box cp -a /.kinst/dev/null /dev/null; }
    next=$kinst_init
    unset kinst_init
    kinst_before=$($box stat -c %d:%i /) $box chroot $home /bin/busybox sh /init beside \
        <$home/dev/null >$home/dev/null 2>&1 &
    unset kinst_output kinst_control
    exec "$next" "$@"
fi

export PATH=/bin HOME=/ TERM=dumb
# Set by kinst on the kernel's command line; commands must not see them.
OUTPUT=/dev/${kinst_output:-ttyS1}
CONTROL=/dev/${kinst_control:-ttyS2}
unset kinst_output kinst_control

/bin/busybox --install -s /bin

# Load the modules of the archive, up to the first one that the kernel refuses; set `refused` to its
# file name and the reason. The kernel log often says more than insmod does. Its last lines are the
# reason, except after a crash, where insmod ends without a message and the first lines are.  insmod
# tries two system calls, so the log may have each line twice.
load_modules() {
    for module in /lib/kinst/*.ko; do
        [ -e "$module" ] || continue
        before=$(dmesg | wc -l)
        why=$(insmod "$module" 2>&1) && continue
        status=$?
        which=tail
        [ -n "$why" ] || { which=head && why="insmod ended with status $status"; }
        log=$(dmesg | tail -n "+$((before + 1))" | sed -E 's/^\[[ 0-9.]+\](\[ *[CT][0-9]+\])? *//' |
            grep -v ' taint' | uniq | $which -n 3 | sed -e ':a' -e 'N;$!ba' -e 's/\n/; /g')
        name=${module##*/}
        refused="${name#*-}: ${why##*\': }${log:+ (kernel log: $log)}"
        break
    done
}

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

    load_modules
}

refused=
[ "$1" = beside ] && beside=yes || { beside= && set_up; }

# These stay open: the last close of a serial port waits, and may reset the raw mode.
exec 3<>"$OUTPUT" 4<>"$CONTROL"
stty -F "$OUTPUT" raw -echo 115200
stty -F "$CONTROL" raw -echo 115200

say() {
    echo "$*" >&4
}

# Wait until process $1 has passed on all output: it has ended, or it waits in read(0) for more, if a
# process that the command has left running holds the pipe (proc(5), syscall).
wait_passed() {
    while [ -e "/proc/$1" ]; do
        descriptor=
        read -r _ descriptor _ <"/proc/$1/syscall" || sleep 0.1
        [ "$descriptor" != 0x0 ] || return 0
        sleep 0.01
    done
}

# Wait until the user's system is up: it has switched to the root of the kernel's command line, has
# mounted /proc, and systemd, if it runs there, has started its units.
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

# The environment of commands in another root; commands in the host's root set their own.
fresh='env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb'

# Set the same environment in this shell, so that the command's first system call is that of its
# shell.
clear_environment() {
    export -p >/run/environment
    while IFS=" =" read -r _ name _; do
        unset "$name"
    done </run/environment
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
    rm -f /run/environment
}

# When this shell, the leader of its session, ends, the kernel hangs up the terminal for all
# processes.  stty waits until the command's output has left the port before that.
on_terminal='
    if [ -n "$2" ]; then $4 chroot "$2" /bin/sh -c "$3"; else sh -c "$3"; fi
    status=$?
    stty -F "$1" -echo
    exit $status
'

# is_in STATE PROCESS: whether a process is in a state (proc(5), stat).
is_in() {
    state=
    read -r _ _ state _ <"/proc/$2/stat"
    [ "$state" = "$1" ]
}

# hold_helpers PROCESS [PASSER]: stop the process that waits for the command, and return when all
# others of this script wait for kinst.  A process that was woken but has not run yet still seems to
# wait, so their states are read twice.
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

# Run one command, from a held process to its exit line.  The held shell execs another one, which
# execs a simple command, so that all have the process id that was announced.  Both sides open the
# fifo for reading and writing, so that neither blocks in open(2).
run() {
    # "Killed" and "Terminated" of this shell are not output of the command.
    exec 2>/dev/null
    root=
    [ ! -e /mnt/root/proc/self ] || root=/mnt/root
    [ -z "$beside" ] || { wait_system && root=/proc/1/root/.; }
    passer=
    if [ -n "$2" ]; then
        stty -F "$OUTPUT" sane rows "$2" columns "$3"
        exec 6>&3
    elif [ -n "$root" ]; then
        # A pipe, since on a terminal programs would use colours and pagers.
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
        [ -n "$2" ] || [ -z "$root" ] || clear_environment
        say "pid $pid $passer"
        read -r alone <&5
        [ -z "$alone" ] || hold_helpers "$parent" "$passer"
        # The name that it has until its execve has set another.  When it is written, kinst knows
        # that the execve comes next.
        echo -n sh >/proc/self/comm
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
    # The modes are as before, but stty sets them with TCSADRAIN: it returns when the port is empty.
    stty -F "$OUTPUT" raw -echo
    rm -f /run/held /run/go
    say "exit $status"
    rm -f /run/busy
}

# Run commands, one after another.  None runs in the background, where the shell would make it ignore
# SIGINT.
serve() {
    read -r pid _ </proc/self/stat
    echo "$pid" >/run/server
    while read -r command rows columns; do
        # $( ) removes newlines at the end, but not before the x.
        command=$(echo "$command" | xxd -r -p; echo x)
        (run "${command%x}" "$rows" "$columns")
        exec 3<>"$OUTPUT"
    done
}

# mount_tag OPTIONS TAG FOLDER.  The device may have been plugged in just now; if the kernel does not
# notice, rescan the bus.
mount_tag() {
    wait=100
    until message=$(mount -t virtiofs $1 "$2" "$3" 2>&1); do
        [ $((wait -= 1)) -gt 0 ] && grep -q virtiofs /proc/filesystems || break
        [ $((wait % 10)) != 5 ] || echo 1 >/sys/bus/pci/rescan
        sleep 0.05
    done
    [ -z "$message" ] || { echo "$message"; false; }
}

# The host's folder is never written: an overlay keeps the changes of commands in memory.  Devices,
# processes and sockets are those of this machine.
mount_root() {
    mkdir -p /mnt/host /mnt/changes /mnt/root
    mount_tag '-o ro' "$1" /mnt/host && mount -t tmpfs changes /mnt/changes || return
    mkdir /mnt/changes/files /mnt/changes/work
    mount -t overlay -o lowerdir=/mnt/host,upperdir=/mnt/changes/files,workdir=/mnt/changes/work \
        root /mnt/root || return
    # An overlay opens files with O_NOATIME, which a virtiofsd without root's rights cannot do for
    # files of other users.  Then use no overlay, and make only temporary folders writable.
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
    while ! [ -e /run/server ]; do sleep 0.01; done
    [ -z "$refused" ] || say "refused $refused"
    say ready
    while read -r verb argument <&4; do
        case "$verb" in
        prepare)
            if [ -e /run/go ] || [ -e /run/held ]; then
                say "error a command is already prepared"
            else
                mkfifo /run/go
                : >/run/busy
                # serve() runs it: if a child of this shell ended during a read, busybox would lose
                # the part of the line that it has read.
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
                # Stop processes before their children are listed, so that they start no more.
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
    # The control port is closed: kinst has ended.
    poweroff -f
}

listen | serve
