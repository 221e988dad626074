# Completes gpushim's lines in fish, as the program itself tells what may stand there.
function __gpushim
    set -l words (commandline -opc) (commandline -ct)
    for each in ($words[1] --complete $words 2>/dev/null)
        switch $each
            case ':file'
                __fish_complete_path (commandline -ct)
            case ':program *'
                complete -C (string join ' ' -- (string escape -- $words[(math (string sub -s 10 -- $each) + 1)..-2]) $words[-1])
            case '*'
                echo $each
        end
    end
end

complete -c gpushim -f -a '(__gpushim)'
