"""Which commit a tree is of."""
import subprocess


def commit_of(root):
    """None where nothing says so: there is no git, or the tree is none of its."""
    try:
        run = subprocess.run(['git', '-C', str(root), 'rev-parse', 'HEAD'], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None
