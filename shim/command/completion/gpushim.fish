# Completes gpushim's commands and their options in fish, as the program itself tells them (--help).
function __gpushim_commands
    gpushim --help 2>/dev/null | string replace -rf '^  ([a-z][a-z-]*) +(.*)$' '$1\t$2'
end

function __gpushim_options
    set -l words (commandline -opc)
    gpushim $words[2] --help 2>/dev/null | string match -ra -- '--[a-z][a-z-]*' | sort -u
end

function __gpushim_names
    gpushim config 2>/dev/null | awk '/^\[/ { section = $1 == "[general]" ? "" : substr($1, 2, length($1) - 2) "." }
        /^[a-z_]+ =/ { print section $1 "=" }'
end

function __gpushim_settings
    gpushim set --help 2>/dev/null | string replace -rf '^  ([a-z_.]*)  .*' '$1='
end

complete -c gpushim -n 'set -l words (commandline -opc); test (count $words) -eq 3; and test $words[2] = set' -f -a '(__gpushim_settings)'
complete -c gpushim -n 'test (commandline -opc)[-1] = -o' -f -a '(__gpushim_names)'
complete -c gpushim -n 'test (count (commandline -opc)) -eq 1' -f -a '(__gpushim_commands)'
complete -c gpushim -n 'test (count (commandline -opc)) -gt 1; and string match -q -- "-*" (commandline -ct)' -f -a '(__gpushim_options)'
