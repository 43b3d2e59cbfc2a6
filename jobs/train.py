"""`dcray train` as a job: ray job submit --working-dir . -- python jobs/train.py WORDS"""

import sys

from dcray.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train"]
    main()
