# Completion of kinst for bash (4.4 or newer).  `kinst --completion bash` prints it.
_kinst() {
    local listing=0 answer=()
    # 63 is '?': the second press of TAB, which only lists.
    [ "${COMP_TYPE-}" != 63 ] || listing=1
    mapfile -t answer < <("${1/#\~/$HOME}" --complete bash "$COMP_WORDBREAKS" "$listing" \
        "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    COMPREPLY=()
    case ${answer[0]-} in
    words)
        compopt -o nospace
        COMPREPLY=("${answer[@]:1}")
        ;;
    files)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$2")
        ;;
    folders)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -d -- "$2")
        ;;
    esac
}
complete -o nosort -F _kinst kinst
