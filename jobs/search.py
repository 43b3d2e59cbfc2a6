"""`dcray search` as a job: ray job submit --working-dir . -- python jobs/search.py WORDS"""

from forward import forward

if __name__ == "__main__":
    forward("search")
