"""`dcray train` as a job: ray job submit --working-dir . -- python jobs/train.py WORDS"""

from forward import forward

if __name__ == "__main__":
    forward("train")
