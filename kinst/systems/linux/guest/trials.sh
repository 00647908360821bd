# Tries of a command (kinst/trials), each with something else going wrong in the kernel.  kinst puts
# assignments of these variables before this text:
#
#   command    the user's command
#   numbers    the tries' numbers, in order; a number may be there more than once
#   expected   exit status of the command if nothing goes wrong; empty if that is not known
#   limit      seconds after which the command hangs
#   base       what is added to a number when the D program is told it
#
# Each try runs the command twice: first with the failure, then without, since a lock that is still
# held, or damaged memory, shows only then.  Lines of standard output, for kinst:
#
#   @warm STATUS           the command has run without a failure
#   @try NUMBER            a try begins
#   @status FIRST SECOND   exit statuses of the two runs
#   @grown CACHE N         the first run left N objects more in a cache of the kernel
#   @later CACHE N         the second run did
#   @out TEXT              the end of the first run's output
#   @log TEXT              the kernel's log of the try
#   @end NUMBER            the try is over
#   @hang NUMBER RUN       a run takes too long; the log follows, with the stacks of blocked tasks
#   @over                  all lines about the hang are written
#
# The tries end early if the kernel reports a problem or the second run fails: later tries need
# another guest.

here=/tmp/kinst-trials
trouble='BUG|WARNING:|Oops|\[#[0-9]+\]|general protection|LOCKUP|lockup|stall|blocked for more than'
mkdir -p $here
mkfifo $here/never
for file in now before after later last output log; do
    : >$here/$file # so that no try makes them
done
caches=
for cache in /sys/kernel/slab/*; do
    [ -L "$cache" ] || [ ! -e "$cache/shrink" ] || caches="$caches $cache"
done
step=0

# Tell the D program which try runs; 0 for none.
tell() {
    kill -0 $((base + $1))
} 2>/dev/null

# objects FILE: write the number of objects in each cache of the kernel to a file.  Caches count the
# free objects of a CPU's own slabs as used until they are shrunk; so the process that counts them
# shrinks them right before.  It has all files open by then, since an open file takes objects of some
# caches.  The kernel frees inodes and much else after a grace period of RCU, which lasts longer if the
# host is busy; so the objects are counted until two counts are equal, at most eight times.  The kernel
# frees areas of vmalloc() later, many at once (mm/vmalloc.c, lazy_max_pages()), so they are not
# counted.
objects() {
    sync
    for count in 1 2 3 4 5 6 7 8; do
        echo 3 >/proc/sys/vm/drop_caches
        read -r -t 0.1 nothing <>$here/never
        awk '
            BEGIN {
                count = ARGC
                ARGC = 1 # getline reads standard input
                for (k = 1; k < count; k++) printf "" >(ARGV[k] "/shrink")
                for (k = 1; k < count; k++) {
                    print 1 >(ARGV[k] "/shrink")
                    fflush(ARGV[k] "/shrink")
                }
                while ((getline line) > 0) {
                    split(line, words)
                    if (words[1] != "vmap_area") print words[1], words[2]
                }
            }
        ' $caches </proc/slabinfo >"$1"
        if [ $count != 1 ] && cmp -s "$1" $here/last; then return; fi
        cp "$1" $here/last
    done
} 2>/dev/null

# grown WORD BEFORE AFTER
grown() {
    awk -v word="@$1" '
        NR == FNR { was[$1] = $2; next }
        $2 ~ /^[0-9]+$/ && $2 != was[$1] { print word, $1, $2 - was[$1] }
    ' "$2" "$3"
}

# now NUMBER RUN: what runs from now on, for watch().
now() {
    step=$((step + 1))
    echo "$step $1 $2" >$here/now
}

watch() {
    trap 'kill $sleeper; exit' TERM
    was=
    while :; do
        sleep "$limit" &
        sleeper=$!
        wait $sleeper
        read -r at number run <$here/now
        if [ "$at" = "$was" ]; then
            echo w >/proc/sysrq-trigger
            sleep 1
            echo "@hang $number $run"
            dmesg | tail -n 150 | sed 's/^/@log /'
            echo @over
            return
        fi
        was=$at
    done
}

attempt() {
    echo "@try $1"
    dmesg -c >/dev/null
    now "$1" objects
    objects $here/before
    now "$1" first
    tell "$1"
    sh -c "$command" </dev/null >$here/output 2>&1
    status=$?
    tell 0
    now "$1" objects
    objects $here/after
    now "$1" second
    sh -c "$command" </dev/null >/dev/null 2>&1
    second=$?
    now "$1" objects
    objects $here/later
    echo "@status $status $second"
    grown grown $here/before $here/after
    grown later $here/after $here/later
    tail -n 5 $here/output | awk '{ print "@out " $0 }' # it ends the last line, which may have no end
    dmesg >$here/log
    head -n 150 $here/log | sed 's/^/@log /'
    echo "@end $1"
    if grep -qE "$trouble" $here/log; then return 1; fi
    [ -z "$expected" ] || [ "$second" = "$expected" ]
}

echo 4 >/proc/sys/vm/drop_caches # no lines about it in the log
echo 5 >/proc/sys/kernel/watchdog_thresh
now 0 warm
watch &
watcher=$!
tell 0
sh -c "$command" </dev/null >/dev/null 2>&1
now 0 warm
sh -c "$command" </dev/null >/dev/null 2>&1
echo "@warm $?"
objects $here/before
for number in $numbers; do
    attempt "$number" || break
done
kill $watcher
wait $watcher
rm -rf $here
