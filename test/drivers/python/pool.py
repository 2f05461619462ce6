"""The application around a pool, which the programs pool_*.py share. The Go package
above describes what it does."""

import sys
import threading
import time

from common import print_line

LOOPS = 3
PAUSE = 0.05

silent = False
printing = threading.Lock()  # print writes the end of a line separately


def listen():
    """Makes the loops silent, or ends the silence, at each line on standard input."""
    global silent
    for _ in sys.stdin:
        silent = not silent


def print_result(result):
    with printing:
        print_line(scenario="insert", result=result)


def work(insert):
    """Calls insert for ever, in three threads, and prints what it returns."""

    def loop():
        while True:
            if not silent:
                print_result(insert())
            time.sleep(PAUSE)

    threads = [threading.Thread(target=loop) for _ in range(LOOPS)]
    for thread in threads:
        thread.start()
    listen()
    for thread in threads:
        thread.join()
