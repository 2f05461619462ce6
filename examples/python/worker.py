#!/usr/bin/env python3
"""An example worker that uses psycopg 3. It waits until it is the leader, then writes once a
second. After a refused write it starts again from the read.

WORKER is its name, and RESOURCE what it wants to write (default: billing). PGHOST and similar
variables give the address of Fencepost.
"""

import os
import time
import uuid

import psycopg

NAME = os.environ["WORKER"]
RESOURCE = os.environ.get("RESOURCE", "billing")
# It differs each time the process starts. All connections of the process share it.
WORKER_ID = f"{NAME}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

# ZF002: not the leader. ZF003: the leader again, and its connection did not know yet.
# 40001: the snapshot is older than the lead. The connection remains usable after each.
START_AGAIN = {"ZF002", "ZF003", "40001"}


def connect():
    """Returns a connection as soon as this worker is the leader."""
    print(f"{NAME}: connecting, and waiting to lead", flush=True)
    options = f"-c fencepost.resource={RESOURCE} -c fencepost.worker={WORKER_ID} -c fencepost.campaign=wait"
    conn = psycopg.connect(options=options, autocommit=True)
    print(f"{NAME} leads and writes once a second", flush=True)
    return conn


def work(conn):
    """One piece of work: what it writes depends only on what it reads here."""
    with conn.transaction():
        (rows,) = conn.execute("SELECT count(*) FROM charges").fetchone()
        (row,) = conn.execute("INSERT INTO charges (worker) VALUES (%s) RETURNING id", [NAME]).fetchone()
    print(f"{NAME} wrote row {row}, after {rows} others", flush=True)


def lead(conn):
    """Works until the connection ends."""
    while not conn.closed:
        try:
            work(conn)
        except psycopg.Error as error:
            if error.sqlstate not in START_AGAIN:
                raise
            print(f"{NAME}: {error}", flush=True)
        time.sleep(1)


def main():
    while True:
        try:
            with connect() as conn:
                lead(conn)
        except psycopg.OperationalError as error:
            # ZF001, or the connection broke. The text tells which: psycopg has no SQLSTATE
            # for an error that ends the connection.
            print(f"{NAME}: connection closed: {error}", flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
