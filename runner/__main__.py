"""`python -m runner`: the only place that turns results into exit codes."""
import sys
from runner.compose import compose_jobs
from runner.errors import *
def main():
    try:
        compose_jobs(sys.argv[1:], "train", lambda job: print(job))
    except RunnerError as e:
        print(f"runner: {e.name}: {e}", file=sys.stderr); return e.exit_code
    return 0
if __name__ == "__main__":
    sys.exit(main())
