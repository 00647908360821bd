# Debian packages: functions that find tools that do not work, and install the packages that these tools
# need.  Sourced by setup.sh.
# shellcheck shell=bash disable=SC2154 # setup.sh sets venv, cache and other variables

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Print the packages to install for a tool that does not work: the tool's packages that are not installed.
# If all are installed: the dependencies that apt reports as missing; if there are none, all packages of the
# tool, because their files must be damaged.
packages_to_get() {
    local package missing=()
    for package; do
        is_installed "$package" || missing+=("$package")
    done
    if [ ${#missing[@]} = 0 ]; then
        # NoLocking lets this work without root; the command only reads.
        mapfile -t missing < <(LC_ALL=C apt-get -o Debug::NoLocking=1 check 2>&1 |
            sed -n 's/.*Depends: \([^ ]*\).* but it is not .*/\1/p')
    fi
    [ ${#missing[@]} != 0 ] || missing=("$@")
    printf '%s\n' "${missing[@]}"
}

# Read the lines of broken_tools, and print them with only the packages to install.
name_packages() {
    local tool packages reason
    while IFS=: read -r tool packages reason; do
        # shellcheck disable=SC2086 # a list of words
        echo "$tool: $(packages_to_get $packages | sort -u | tr '\n' ' '):$reason"
    done
}

# Print a message for each broken tool: its name, the reason, the packages.
say_broken() {
    local tool packages reason
    while IFS=: read -r tool packages reason; do
        read -r packages <<<"$packages"
        say "$tool does not work (${reason# }); Debian has it in: $packages"
    done <<<"$1"
}

# Run apt-get, and print its last output only if it fails.
quiet_apt() {
    apt-get -q "$@" >"$apt_log" 2>&1 && return
    tail -n 15 "$apt_log"
    return 1
}

# install BROKEN: install the packages that the lines of BROKEN name; reinstall them if they are damaged.
install() {
    local started=$SECONDS packages package command="install --no-install-recommends --fix-broken"
    packages=$(cut -d: -f2 <<<"$1" | tr -s ' ' '\n' | sort -u | tr '\n' ' ')
    read -r packages <<<"$packages"
    for package in $packages; do
        if is_installed "$package"; then
            command+=" --reinstall"
            break
        fi
    done
    if ! command -v apt-get >/dev/null; then
        say_broken "$1"
        say "this machine has no apt; install what Debian calls: $packages"
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        say_broken "$1"
        say "only root can install packages; run this, then make again:"
        say "    sudo apt-get $command $packages"
        exit 1
    fi
    say "installing packages: $packages"
    export DEBIAN_FRONTEND=noninteractive
    apt_log=$(mktemp)
    # shellcheck disable=SC2086 # lists of words
    if ! { quiet_apt update && quiet_apt $command --no-remove -y $packages; }; then
        rm -f "$apt_log"
        say "apt-get could not install: $packages"
        exit 1
    fi
    rm -f "$apt_log"
    say "packages installed ($((SECONDS - started)) s)"
}

# system_packages LEVEL: install the packages of the tools of LEVEL (basic, test or all), and try each tool
# once.  A file in the cache records that the tools work; it is valid until a tool or a package changes.
system_packages() {
    local key broken names tried='' tools=$basic_tools proofs=$cache/tools
    key=$(tools_key)
    [ "$(cat "$proofs-all" 2>/dev/null)" != "$key" ] || return 0
    if [ "$1" = all ]; then
        tools+=$test_tools$all_tools
    elif [ "$(cat "$proofs-test" 2>/dev/null)" = "$key" ]; then
        return 0
    elif [ "$1" = test ]; then
        tools+=$test_tools
    elif [ "$(cat "$proofs-basic" 2>/dev/null)" = "$key" ]; then
        return 0
    fi
    # Some tools can be tried only with gcc, so after gcc is installed a second round may find more.
    while true; do
        broken=$(broken_tools <<<"$tools" | name_packages) || exit 1
        [ -n "$broken" ] || break
        names=$(cut -d: -f1 <<<"$broken")
        if [ "$names" = "$tried" ]; then
            say_broken "$broken"
            exit 1
        fi
        install "$broken"
        tried=$names
    done
    # If the record cannot be written, the tools are tried again the next time.
    { mkdir -p "$cache" && tools_key >"$proofs-$1"; } 2>/dev/null || true
}
