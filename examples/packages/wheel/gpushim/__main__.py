"""python -m gpushim COMMAND ...: becomes the command gpushim, which has all of its commands but kernelspec."""
import os
import sys

import gpushim
from gpushim import kernelspec


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ['kernelspec']:
        return kernelspec.main(arguments[1:])
    sys.stdout.flush()
    try:
        os.execv(gpushim.command(), ['gpushim', *arguments])
    except OSError as error:
        print(f"gpushim: {gpushim.command()} cannot be started: {error.strerror}; install the package anew, as files "
              "(pip install --force-reinstall), in a place that is not mounted noexec", file=sys.stderr)
    return 126


if __name__ == '__main__':
    sys.exit(main())
