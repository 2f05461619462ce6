#!/usr/bin/env python3
"""An elector in the application's own Postgres: whoever has the advisory lock leads, and each
term has a number, which is the token.

ELECTOR is the DSN of that Postgres, past Fencepost, with the table
    CREATE TABLE leadership_term (resource text PRIMARY KEY, term bigint NOT NULL);
For the rest see elected.py.
"""

import os
import time

import psycopg

from elected import RESOURCE, lead, say


def elect(conn):
    """Waits for the lock, and returns the number of the new term. The lock lasts as long as the
    connection, so a later holder always gets a higher number."""
    say("waiting to be elected")
    conn.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [RESOURCE])
    return conn.execute(
        """INSERT INTO leadership_term AS t (resource, term) VALUES (%s, 1)
           ON CONFLICT (resource) DO UPDATE SET term = t.term + 1 RETURNING t.term""",
        [RESOURCE],
    ).fetchone()[0]


def alive(conn):
    """Reports whether the connection, and with it the lock, is still there."""
    try:
        conn.execute("SELECT 1")
        return True
    except psycopg.OperationalError:
        return False


def main():
    while True:
        try:
            with psycopg.connect(os.environ["ELECTOR"], autocommit=True) as conn:
                lead(elect(conn), lambda: alive(conn))
        except psycopg.OperationalError as error:
            say(f"the elector's connection: {error}")
        time.sleep(1)


if __name__ == "__main__":
    main()
