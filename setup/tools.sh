# The programs (tools) that kinst and its tests run, the Debian packages that have them, and for each tool a
# trial that shows whether it works.  Sourced by setup.sh.
# shellcheck shell=bash disable=SC2154 # setup.sh sets venv, cache and other variables

# Lines TOOL: PACKAGES.  The trial of a tool is its case in prove().
basic_tools='
gcc: gcc libc6-dev
gdb: gdb
qemu-system-x86_64: qemu-system-x86
python: python3-venv'

# Tools of `make test`: compilers of test programs, and programs whose output is compared with kinst's.
test_tools='
cpp: cpp
g++: g++
readelf: binutils
dwz: dwz
aarch64-linux-gnu-gcc: gcc-aarch64-linux-gnu libc6-dev-arm64-cross
riscv64-linux-gnu-gcc: gcc-riscv64-linux-gnu libc6-dev-riscv64-cross
virtiofsd: virtiofsd_package
pgrep: procps
man: man-db
jq: jq
xz: xz-utils
zstd: zstd
lz4: lz4
zsh: zsh
bash-completion: bash-completion'

# Tools of the other tests: programs whose output is compared with kinst's, and the machines that tests boot.
all_tools='
clang: clang
gdb-multiarch: gdb-multiarch
libdw: libdw-dev libelf-dev
llvm-dwarfdump: llvm
pahole: pahole llvm
qemu-system-aarch64: qemu-system-arm
qemu-system-riscv64: qemu-system-misc
lcov: lcov
prove: perl
dot: graphviz
debootstrap: debootstrap
llvm-config-19: llvm-19-dev'

# In Debian 12 virtiofsd is in QEMU's package, in later releases it has its own.  It is not in PATH.
virtiofsd_package=virtiofsd
if grep -q bookworm /etc/os-release 2>/dev/null; then virtiofsd_package=qemu-system-common; fi
test_tools=${test_tools/virtiofsd_package/$virtiofsd_package}
find_virtiofsd() {
    PATH=$PATH:/usr/lib/qemu:/usr/libexec:/usr/lib type -P virtiofsd
}

# Print the first Python that is new enough; with "venv", only one that can make environments.
find_python() {
    local python
    for python in python3.11 python3 python3.12 python3.13 python3.14; do
        if "$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null &&
            { [ "${1:-}" != venv ] || "$python" -c "import ensurepip, venv" 2>/dev/null; }; then
            echo "$python"
            return
        fi
    done
    echo 'no Python 3.11 or newer with its venv module'
    return 1
}

# Start a machine by QEMU without running its CPUs, and end it.
starts_qemu() {
    printf '%s\n' '{"execute": "qmp_capabilities"}' '{"execute": "quit"}' |
        timeout 60 "$@" -nodefaults -accel tcg -m 64 -S -display none -qmp stdio
}

# Compile sample.c statically, as tests do; it needs the headers of the C library, of the kernel and of threads.
compiles_static() {
    "$1-gcc" -O2 -static -pthread -o "static-$1" sample.c &&
        "$1-objdump" -d "static-$1" | grep '<main>:' &&
        "$1-gcc" -c -o sample.o sample.c && "$1-objcopy" -O binary -j .text sample.o sample.bin
}

# Start virtiofsd as kinst starts it for root: with a listening socket, to share this folder.  Ask it for its
# features (vhost-user's request 1); a correct answer has a header of 12 bytes and 8 bytes of data.
serves_folder() {
    "$(find_python)" - "$(find_virtiofsd)" <<'ASK'
import os, socket, struct, subprocess, sys

server = socket.socket(socket.AF_UNIX)
server.bind(b"")
server.listen(1)
client = socket.socket(socket.AF_UNIX)
client.connect(server.getsockname())
client.settimeout(30)
options = ["-f", f"--fd={server.fileno()}", "-o", f"source={os.getcwd()},sandbox=chroot"]
with subprocess.Popen([sys.argv[1], *options], pass_fds=[server.fileno()]) as child:
    server.close()
    client.sendall(struct.pack("<3I", 1, 1, 0))
    answer = client.makefile("rb").read(20)
    client.close()
    child.kill()
sys.exit(len(answer) != 20)
ASK
}

# prove TOOL: try a tool, in a folder that has sample.c and, if gcc works, the program `sample` compiled from it.
# If the trial fails, the last line of its output is the reason.
prove() {
    case $1 in
    gcc) gcc -O2 -g -static -pthread -o sample sample.c && ./sample ;;
    gdb) gdb -q -nx -batch -ex 'python print(6 * 7)' -ex 'info line main' sample | grep sample.c ;;
    gdb-multiarch) gdb-multiarch -q -nx -batch -ex 'set architecture riscv:rv64' -ex 'show architecture' | grep riscv ;;
    qemu-system-x86_64) starts_qemu "$1" -machine q35 ;;
    qemu-system-*) starts_qemu "$1" -machine virt ;;
    python)
        if [ -x "$checkout/$venv/bin/python" ]; then
            "$checkout/$venv/bin/python" -c 'import ctypes, lzma, ssl, zlib' && return
        fi
        find_python venv
        ;;
    g++)
        echo 'int main() { try { throw 6; } catch (int six) { return 7 * six; } }' >thrown.cc &&
            g++ -O2 -g -o thrown thrown.cc && { ./thrown || [ $? = 42 ]; }
        ;;
    cpp) [ "$(echo WHAT | cpp -P -DWHAT=works -)" = works ] ;;
    readelf)
        objcopy --only-keep-debug sample sample.debug && strip -o stripped sample &&
            readelf -wi sample.debug | grep DW_TAG_subprogram && objdump -d sample | grep '<main>:' &&
            addr2line -e sample "0x$(nm sample | sed -n 's/ T main$//p')" | grep sample.c &&
            echo '.globl _start; _start: nop' | as -o nop.o - && ld -o nop nop.o
        ;;
    clang) clang -O2 -g -o by-clang sample.c && ./by-clang ;;
    dwz) dwz -o smaller sample && [ -s smaller ] ;;
    libdw)
        gcc -Wall -Werror -o libdw "$checkout/tests/c/libdw_copies.c" -ldw -lelf &&
            ./libdw sample
        ;;
    pahole) gcc -g -c -o with-btf.o sample.c && pahole -J with-btf.o && objdump -h with-btf.o | grep -F .BTF ;;
    llvm-dwarfdump) llvm-dwarfdump --name=main sample | grep DW_TAG_subprogram ;;
    *-linux-gnu-gcc) compiles_static "${1%-gcc}" ;;
    virtiofsd)
        # For users other than root, kinst starts virtiofsd in a user namespace (machines/vm/files.py).
        if [ "$EUID" = 0 ]; then
            serves_folder
        else
            unshare --user --map-root-user "$(find_virtiofsd)" --print-capabilities
        fi
        ;;
    pgrep) pgrep -f . ;;
    man) man -l "$checkout/docs/kinst.1" | grep kinst ;;
    zsh) zsh -fc 'autoload -U compinit && compinit -D && echo works' | grep works ;;
    bash-completion) bash -c '. /usr/share/bash-completion/bash_completion && complete -p -D' ;;
    xz | zstd | lz4) "$1" -cq sample.c | "$1" -dcq | cmp sample.c ;;
    jq) [ "$(jq -n '6 * 7')" = 42 ] ;;
    lcov)
        printf '%s\n' "SF:$PWD/sample.c" DA:1,1 DA:2,0 end_of_record >sample.info &&
            lcov --summary sample.info | grep '1 of 2 lines' && genhtml -q -o html sample.info &&
            [ -s html/index.html ]
        ;;
    llvm-config-19)
        echo '#include "llvm/MC/MCInst.h"' >with-llvm.cpp &&
            g++ -c -o with-llvm.o with-llvm.cpp "$(llvm-config-19 --includedir | sed s,^,-I,)" -D__STDC_CONSTANT_MACROS -D__STDC_LIMIT_MACROS -D__STDC_FORMAT_MACROS
        ;;
    prove) echo 'print "1..1\nok 1\n"' >sample.t && command prove sample.t | grep 'Result: PASS' ;;
    dot) echo 'digraph { a -> b }' | dot -Tsvg | grep '</svg>' ;;
    debootstrap) debootstrap --version && wget --version ;;
    esac
}

is_there() {
    case $1 in
    python) find_python >/dev/null ;;
    libdw) [ -e /usr/include/elfutils/libdw.h ] ;;
    virtiofsd) find_virtiofsd >/dev/null ;;
    bash-completion) [ -e /usr/share/bash-completion/bash_completion ] ;;
    *) type -P "$1" >/dev/null ;;
    esac
}

# try_tool TOOL: try a tool in this folder, and print the reason if it does not work.
try_tool() {
    if ! is_there "$1"; then
        echo 'it is not there'
        return 1
    fi
    # These tools are tried on the program that gcc made: skip them if gcc does not work.
    case $1 in gdb | readelf | clang | dwz | libdw | llvm-dwarfdump | pahole) [ -x sample ] || return 0 ;; esac
    (prove "$1") >out 2>&1 </dev/null && return
    { grep -m 1 -i -E 'error|cannot|no such' out || tail -n 1 out || true; } | cut -c 1-120
    return 1
}

# Read lines TOOL: PACKAGES, and print TOOL: PACKAGES: REASON for each tool that does not work.
broken_tools() (
    local folder checkout=$PWD tool packages reason
    folder=$(mktemp -d) || return
    trap 'rm -rf "$folder"' EXIT
    cd "$folder" || return
    cat >sample.c <<'SAMPLE'
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *said(void *text) { return puts(text) < 0 ? NULL : text; }

int main(void)
{
    pthread_t thread;
    void *text = NULL;
    if (pthread_create(&thread, NULL, said, "works") || pthread_join(thread, &text))
        return 1;
    return text == NULL || syscall(SYS_getpid) != getpid();
}
SAMPLE
    while IFS=: read -r tool packages; do
        [ -n "$tool" ] || continue
        reason=$(LC_ALL=C try_tool "$tool") || echo "$tool:$packages: $reason"
    done
)

# Print a key that changes when a tool or a package changes: the state of the tools' files and of dpkg's list
# of packages (if there is dpkg).
tools_key() {
    local tool paths=()
    while IFS=: read -r tool _; do
        paths+=("$(type -P "$tool" || true)")
        [ "$tool" != virtiofsd ] || paths+=("$(find_virtiofsd || true)")
    done <<<"$basic_tools$test_tools$all_tools"
    stat -L -c '%n %i %s %Y' setup/tools.sh /var/lib/dpkg/status "${paths[@]}" 2>/dev/null || true
}
