"""What the workloads have in common: lines that tests/gpu/run.sh compares, natively and under the library."""


def result(what, outcome):
    print(f"RESULT {what} {outcome}", flush=True)


def all_run(checks):
    """Runs one after the other. False: one of them failed, and its result says how."""
    passed = True
    for number, check in enumerate(checks):
        try:
            check()
        except Exception as error:  # the outcome is what these programs are for
            name = check.__name__ if check.__name__.isidentifier() else f"check_{number}"
            passed = False
            result(name, f"{type(error).__name__} {str(error).splitlines()[:1]}")
    return passed
