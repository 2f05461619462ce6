"""Shared code of the Python programs. The Go package above describes what they do."""

import json
import sys
import traceback

INSERT_TYPED = """INSERT INTO typed (i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    RETURNING i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing"""
SOME_TEXT = "h\u00e9llo; -- '$1"
SOME_UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
SLOW_UPDATE = "UPDATE account SET balance = 0 FROM pg_sleep(60) WHERE id = 1"
COUNT_EVENTS = "SELECT count(*) FROM event"
COUNT_ACCOUNTS = "SELECT count(*) FROM account"
DUPLICATE = "INSERT INTO account VALUES (1, 1)"
TWO_QUERIES = "SELECT 1; UPDATE account SET balance = 107 WHERE id = 1 RETURNING balance; SELECT 2"
FAILING_QUERIES = (
    "BEGIN; INSERT INTO event (what) VALUES ('kept'); COMMIT; INSERT INTO event (what) VALUES ('lost'); SELECT 1/0"
)
ALONE = [
    "VACUUM account",
    "CREATE INDEX CONCURRENTLY account_balance ON account (balance)",
    "CALL chunks(3)",
    "ANALYZE account",
]


def print_line(**line):
    print(json.dumps(line), flush=True)


def report(name, scenario):
    """Runs a scenario, which returns result and detail, and prints its line."""
    try:
        result, detail = scenario()
    except Exception:
        print_line(scenario=name, failed=traceback.format_exc())
    else:
        print_line(scenario=name, result=result, detail=detail)


def wait_to_be_superseded():
    """Reports that the program has read, and waits for a line to continue."""
    print_line(ready=True)
    if not sys.stdin.readline():
        raise EOFError("no word to go on")


def digits(length):
    """The data of a large object."""
    return (b"0123456789" * (length // 10 + 1))[:length]
