#!/bin/sh
# The pictures of the pages, of PyTorch on a GPU:
#
#   sh tests/gpu/pictures.sh take          on the GPU machine, from .bundle: $OUT gets a recording and the bytes of
#                                          top's screen
#   sh tests/gpu/pictures.sh draw FOLDER   where chromium and tmux are: what it got becomes examples/report/page.png and
#                                          examples/monitoring/top.png. The build's gpushim makes the page.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
workloads=$root/tests/gpu/workloads
columns=112 lines=16

take()
{
    out=${OUT:-/tmp/gpu-out}
    gpushim=$root/.bundle/gpushim
    mkdir -p "$out"
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 GPUSHIM_SHARE_DIR="$out/share" CUBLAS_WORKSPACE_CONFIG=:4096:8
    mkdir -m 700 "$out/share"
    cp "$workloads/torch_steps.py" /tmp/train.py
    LD_PRELOAD=$root/.bundle/libgpushim.so GPUSHIM_RECORD="$out/trace" GPUSHIM_RECORD_STACKS=24 \
        python3 /tmp/train.py gpt 8
    for kind in gpt resnet gpt; do
        LD_PRELOAD=$root/.bundle/libgpushim.so python3 /tmp/train.py "$kind" 1000 >/dev/null &
        pids="${pids:-} $!"
    done
    sleep 18
    "$gpushim" sleep "${pids##* }"
    python3 - "$gpushim" "$columns" "$lines" >"$out/top" <<'PTY'
import fcntl, os, pty, struct, sys, termios, time
pid, screen = pty.fork()
if pid == 0:
    time.sleep(0.5)
    os.execvpe(sys.argv[1], ['gpushim', 'top'], {**os.environ, 'TERM': 'xterm-256color', 'LANG': 'C.UTF-8'})
fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack('HHHH', int(sys.argv[3]), int(sys.argv[2]), 0, 0))
end = time.monotonic() + 7  # top asks each 2 s; what it ends with is not to be on the picture
os.set_blocking(screen, False)
while time.monotonic() < end:
    try:
        sys.stdout.buffer.write(os.read(screen, 65536))
    except BlockingIOError:
        time.sleep(0.05)
os.kill(pid, 9)
PTY
    # shellcheck disable=SC2086 # a word each
    kill -9 $pids
    rm -rf "$out/share"
}

# What tmux shows, with its colours, as a page.
draw()
{
    work=$(mktemp -d)
    "$root/build/shim/command/gpushim" report "$1/trace" --html "$work/page.html" >"$work/report.txt"
    picture "$work/page.html" "$root/examples/report/page.png" 1100,1480
    tmux -L pictures new-session -d -x "$columns" -y "$lines" "cat '$1/top'; sleep 60"
    sleep 2
    tmux -L pictures capture-pane -e -p >"$work/screen"
    tmux -L pictures kill-server
    python3 - "$work/screen" >"$work/top.html" <<'PAGE'
import html, re, sys
COLOURS = ['#222', '#d33', '#4b4', '#cb3', '#58e', '#c5c', '#3bb', '#ddd']
print('<meta charset="utf-8"><body style="margin:0;background:#181818">'
      '<pre style="margin:12px;color:#ddd;font:15px DejaVu Sans Mono">')
for line in open(sys.argv[1], encoding='utf-8'):
    style = {}
    for codes, text in re.findall(r'(?:\x1b\[([0-9;]*)m)?([^\x1b]*)', line.rstrip('\n')):
        for code in (int(code or 0) for code in codes.split(';')) if codes is not None else ():
            if code == 0 and codes:
                style = {}
            elif code == 1:
                style['font-weight'] = 'bold'
            elif code == 7:
                style.update(color='#181818', background='#ddd')
            elif 30 <= code < 38 or 40 <= code < 48:
                style['color' if code < 40 else 'background'] = COLOURS[code % 10]
        if text:
            css = ';'.join(f'{name}:{value}' for name, value in style.items())
            print(f'<span style="{css}">{html.escape(text)}</span>', end='')
    print()
print('</pre>')
PAGE
    picture "$work/top.html" "$root/examples/monitoring/top.png" 1060,150
    cat "$work/report.txt"
    rm -rf "$work"
}

picture()
{
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=5000 --window-size="$3" \
        --screenshot="$2" "file://$1" 2>/dev/null
}

case ${1:-} in
    take) take ;;
    draw) draw "${2:?a folder}" ;;
    *) sed -n '2,7p' "$0" && exit 2 ;;
esac
