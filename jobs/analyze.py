"""`dcray analyze` as a job: ray job submit --working-dir . -- python jobs/analyze.py WORDS"""

from forward import forward

if __name__ == "__main__":
    forward("analyze")
