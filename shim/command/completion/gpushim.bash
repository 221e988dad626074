# Completes gpushim's lines in bash, as the program itself tells what may stand there. Bash takes what follows a = or a :
# for a word of its own; the program is asked with the whole words.
_gpushim()
{
    local line=${COMP_LINE:0:COMP_POINT} words found each before="" last=${COMP_WORDS[COMP_CWORD]}

    read -ra words <<<"$line"
    [[ $line == *[[:blank:]] ]] && words+=('')
    [[ $last == [=:]* ]] && last=${last:1}
    before=${words[-1]%"$last"}
    COMPREPLY=()
    mapfile -t found < <("${words[0]}" --complete "${words[@]}" 2>/dev/null)
    for each in "${found[@]}"; do
        case $each in
        :file) mapfile -t COMPREPLY < <(compgen -f -- "$last") ;;
        :program*)
            if ((${each#:program } == ${#words[@]} - 1)); then
                mapfile -t COMPREPLY < <(compgen -c -f -- "$last")
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$last")
            fi ;;
        *)
            each=${each%%$'\t'*}
            [[ $each == *= ]] && compopt -o nospace 2>/dev/null # its value follows
            COMPREPLY+=("${each#"$before"}") ;;
        esac
    done
}
complete -o filenames -F _gpushim gpushim
