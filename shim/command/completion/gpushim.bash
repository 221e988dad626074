# Completes gpushim's commands and their options in bash, as the program itself tells them (--help). In some languages
# not all of its letters are from a to z.
_gpushim()
{
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]}
    local command=${COMP_WORDS[1]} i

    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null |
            LC_ALL=C sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p') --help --version" -- "$word")
        return
    fi
    for ((i = 2; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then # from there on it is another program's line
            if ((i == COMP_CWORD - 1)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$word")
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$word")
            fi
            return
        fi
    done
    if [[ $before == -o ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" config 2>/dev/null |
            LC_ALL=C awk '/^\[/ { section = $1 == "[general]" ? "" : substr($1, 2, length($1) - 2) "." }
                 /^[a-z_]+ =/ { print section $1 "=" }')" -- "$word")
        compopt -o nospace 2>/dev/null # its value follows
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" "$command" --help 2>/dev/null |
            LC_ALL=C grep -o -e '--[a-z][a-z-]*' | sort -u) --help" -- "$word")
    elif [[ $command == set ]] && ((COMP_CWORD == 3)); then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" set --help 2>/dev/null |
            LC_ALL=C sed -n 's/^  \([a-z_.]*\)  .*/\1=/p')" -- "$word")
        compopt -o nospace 2>/dev/null # its value follows
    elif [[ $command == run ]]; then
        mapfile -t COMPREPLY < <(compgen -c -f -- "$word")
    elif [[ $before == --* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _gpushim gpushim
