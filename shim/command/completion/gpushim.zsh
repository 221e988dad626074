#compdef gpushim
# Completes gpushim's lines in zsh, as the program itself tells what may stand there.
local each
local -a found=(${(f)"$(${words[1]} --complete "${(@)words[1,CURRENT]}" 2>/dev/null)"})
local -a whole names

for each in $found; do
    case $each in
    :file)
        _files ;;
    :program*)
        local -i program=${each#:program }
        words=("${(@)words[program + 1,-1]}")
        (( CURRENT -= program ))
        _normal
        return ;;
    *=$'\t'*)
        names+=(${each%%$'\t'*}) ;; # its value follows
    *)
        whole+=("${${each%%$'\t'*}//:/\\:}:${each#*$'\t'}") ;;
    esac
done
(( $#names )) && compadd -S '' -a names
(( $#whole )) && _describe gpushim whole
(( compstate[nmatches] ))
