"""`dcray search` as a job: ray job submit --working-dir . -- python jobs/search.py WORDS"""

import sys

from dcray.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["search"]
    main()
