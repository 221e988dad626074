#compdef gpushim
# Completes gpushim's commands and their options in zsh, as the program itself tells them (--help).
local program=${words[1]}
local -a found
local -i dashes=${words[(i)--]}

if (( CURRENT == 2 )); then
    found=(${(f)"$($program --help 2>/dev/null | LC_ALL=C sed -n 's/^  \([a-z][a-z-]*\)  *\(.*\)/\1:\2/p')"})
    _describe command found
    return
fi
if (( dashes < CURRENT )); then # from there on it is another program's line
    words=("${(@)words[dashes + 1,-1]}")
    (( CURRENT -= dashes ))
    _normal
    return
fi
found=(${(fu)"$($program ${words[2]} --help 2>/dev/null | LC_ALL=C grep -o -e '--[a-z][a-z-]*')"})
if [[ ${words[CURRENT - 1]} == -o ]]; then
    compadd -S '' -- ${(f)"$($program config 2>/dev/null |
        LC_ALL=C awk '/^\[/ { section = $1 == "[general]" ? "" : substr($1, 2, length($1) - 2) "." }
             /^[a-z_]+ =/ { print section $1 "=" }')"}
elif [[ ${words[2]} == set ]] && (( CURRENT == 4 )); then
    compadd -S '' -- ${(f)"$($program set --help 2>/dev/null | LC_ALL=C sed -n 's/^  \([a-z_.]*\)  .*/\1=/p')"}
elif [[ $PREFIX == -* ]]; then
    compadd -- $found
else
    _files
fi
