"""What a worker does once the application's own elector has elected it: it brings the token to
Fencepost, and writes once a second until it is refused or no longer elected.

WORKER is its name, and RESOURCE what it wants to write (default: billing), which has
"election: token" in Fencepost's configuration. PGHOST and similar variables give the address of
Fencepost.
"""

import os
import time
import uuid

import psycopg

NAME = os.environ["WORKER"]
RESOURCE = os.environ.get("RESOURCE", "billing")
# It differs each time the process starts.
WORKER_ID = f"{NAME}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

# ZF003: elected again, and the connection did not know yet. 40001: the snapshot is older than
# the lead. The connection remains usable after each.
START_AGAIN = {"ZF003", "40001"}


def say(text):
    print(f"{NAME}: {text}", flush=True)


def work(conn):
    """One piece of work: what it writes depends only on what it reads here."""
    with conn.transaction():
        (rows,) = conn.execute("SELECT count(*) FROM charges").fetchone()
        (row,) = conn.execute("INSERT INTO charges (worker) VALUES (%s) RETURNING id", [NAME]).fetchone()
    print(f"{NAME} wrote row {row}, after {rows} others", flush=True)


def lead(token, still_elected):
    """Works under the token until still_elected says no, or a write is refused."""
    say(f"elected with token {token}")
    options = f"-c fencepost.resource={RESOURCE} -c fencepost.worker={WORKER_ID} -c fencepost.token={token}"
    try:
        with psycopg.connect(options=options, autocommit=True) as conn:
            while not conn.closed:
                try:
                    work(conn)
                except psycopg.Error as error:
                    if error.sqlstate not in START_AGAIN:
                        raise
                    say(error)
                if not still_elected():
                    say("no longer elected")
                    return
                time.sleep(1)
    except psycopg.OperationalError as error:
        # ZF001: somebody with a higher token leads. psycopg shows only the text of an error
        # that ends the connection.
        say(f"connection closed: {error}")
