"""psycopg 3: psycopg3.py scenarios|follower|stale|stale_transaction"""

import datetime
import decimal
import re
import sys
import threading
import time
import uuid

import psycopg
from psycopg import Rollback
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from common import *


def connect():
    return psycopg.connect("", autocommit=True)


def value(conn, sql, *args):
    return conn.execute(sql, args or None).fetchone()[0]


def attempt(do):
    """Returns the error that do raises, or None."""
    try:
        do()
    except psycopg.Error as error:
        return error
    return None


def state(error):
    if error is None:
        return "ok"
    return error.sqlstate or f"{type(error).__name__}: {error}"


def detail_of(error):
    if error is None:
        return None
    d = error.diag
    return dict(
        type=type(error).__name__, severity=d.severity, code=d.sqlstate, message=d.message_primary, detail=d.message_detail,
        hint=d.message_hint, position=d.statement_position, where=d.context, table=d.table_name, constraint=d.constraint_name,
        routine=d.source_function, text=str(error),
    )


def types(conn, other):
    cur = conn.execute(INSERT_TYPED, (
        7, 9007199254740993, decimal.Decimal("12.50"), SOME_TEXT, True, b"\x00\xff'",
        datetime.datetime(2020, 2, 3, 4, 5, 6, 789000, tzinfo=datetime.timezone.utc), Jsonb({"x": [1, None]}), [1, 2, 3],
        uuid.UUID(SOME_UUID), None,
    ))
    i4, i8, num, txt, yes, raw, at, doc, numbers, uid, nothing = cur.fetchone()
    at = at.astimezone(datetime.timezone.utc)
    result = dict(
        int4=i4, int8=str(i8), numeric=str(num), text=txt, bool=yes, bytea=raw.hex(),
        timestamptz=at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z", jsonb=doc, array=numbers,
        uuid=str(uid), null=nothing,
    )
    return result, dict(types=[c.type_code for c in cur.description], tag=cur.statusmessage)


def prepared(conn, other):
    # By default it prepares a statement at its fifth use, so four are unprepared.
    balances = [value(conn, "UPDATE account SET balance = balance + %s WHERE id = %s RETURNING balance", i, i % 3 + 1)
                for i in range(1, 13)]
    return dict(balances=balances), None


def batch(conn, other):
    with conn.pipeline():
        cursors = [conn.execute("INSERT INTO event (what) VALUES (%s)", (str(i),)) for i in range(50)]
        count = conn.execute(COUNT_EVENTS)
    return dict(affected=sum(c.rowcount for c in cursors), count=count.fetchone()[0]), dict(tag=cursors[0].statusmessage)


def batch_error(conn, other):
    def run():
        with conn.pipeline():
            conn.execute("INSERT INTO event (what) VALUES ('before')")
            conn.execute(DUPLICATE)
            conn.execute("INSERT INTO event (what) VALUES ('behind')")

    error = attempt(run)
    return (dict(sqlstate=state(error), rows=value(conn, COUNT_EVENTS), usable=value(conn, "SELECT 1")),
            dict(error=detail_of(error), status=conn.info.transaction_status.name))


def pipeline(conn, other):
    results = []
    with conn.pipeline() as p:
        for sql in ("INSERT INTO event (what) VALUES ('a')", "SELECT 1/0", "INSERT INTO event (what) VALUES ('b')"):
            error = attempt(lambda: (conn.execute(sql), p.sync()))
            results.append(error)
    # execute only queues, and sync reads: an error is reported by the sync that receives it.
    return (dict(results=[state(e) for e in results], rows=value(conn, COUNT_EVENTS)),
            dict(errors=[detail_of(e) for e in results]))


def multi(conn, other):
    cur = conn.execute(TWO_QUERIES)
    numbers, tags = [], []
    while True:
        numbers.append(cur.fetchone()[0])
        tags.append(cur.statusmessage)
        if not cur.nextset():
            break
    error = attempt(lambda: conn.execute(FAILING_QUERIES))
    first, balance, last = numbers
    return (dict(first=first, balance=balance, last=last, sqlstate=state(error), rows=value(conn, COUNT_EVENTS)),
            dict(tags=tags, error=detail_of(error)))


def copy_in(conn, other):
    cur = conn.cursor()
    with cur.copy("COPY event (what) FROM STDIN") as copy:
        for i in range(1000):
            copy.write_row((str(i),))
    return dict(copied=cur.rowcount, rows=value(conn, COUNT_EVENTS)), dict(tag=cur.statusmessage)


def copy_error(conn, other):
    def twice():
        with conn.cursor().copy("COPY account FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int4", "int4"])
            copy.write_row((1000, 1))
            copy.write_row((1, 1))

    error = attempt(twice)
    return (dict(sqlstate=state(error), rows=value(conn, COUNT_ACCOUNTS), usable=value(conn, "SELECT 1")),
            dict(error=detail_of(error)))


def copy_fail(conn, other):
    def give_up():
        with conn.cursor().copy("COPY event (what) FROM STDIN") as copy:
            copy.write("lost\n")
            raise ValueError("no more of it")

    error = attempt(give_up)
    return (dict(rows=value(conn, COUNT_EVENTS), usable=value(conn, "SELECT 1")),
            dict(error=detail_of(error), status=conn.info.transaction_status.name))


def copy_out(conn, other):
    cur = conn.cursor()
    with cur.copy("COPY (SELECT * FROM account ORDER BY id) TO STDOUT") as copy:
        rows = ["\t".join(row) for row in copy.rows()]
    return dict(rows=len(rows), first=rows[0], last=rows[-1]), dict(tag=cur.statusmessage)


def cursor(conn, other):
    ids, updated = [], 0
    with conn.transaction():
        with conn.cursor(name="c") as cur:
            cur.itersize = 7
            for (i,) in cur.execute("SELECT id FROM account ORDER BY id"):
                ids.append(i)
                if i % 10 == 0:
                    updated += conn.execute("UPDATE account SET balance = %s WHERE id = %s", (i, i)).rowcount
    streamed = sum(i for (i,) in conn.cursor().stream("SELECT id FROM account"))
    return dict(rows=len(ids), sum=sum(ids), updated=updated), dict(streamed=streamed)


def savepoint(conn, other):
    with conn.transaction():
        conn.execute("UPDATE account SET balance = 1 WHERE id = 1")

        def inner():
            with conn.transaction():
                conn.execute("UPDATE account SET balance = 2 WHERE id = 2")
                conn.execute("SELECT 1/0")

        error = attempt(inner)
        with conn.transaction():
            conn.execute("UPDATE account SET balance = 3 WHERE id = 3")
        with conn.transaction():
            conn.execute("UPDATE account SET balance = 4 WHERE id = 1")
            raise Rollback
    balances = [b for (b,) in conn.execute("SELECT balance FROM account WHERE id < 4 ORDER BY id")]
    return dict(sqlstate=state(error), balances=balances), dict(error=detail_of(error))


def transaction(conn, other):
    levels = []
    for level in (psycopg.IsolationLevel.SERIALIZABLE, psycopg.IsolationLevel.REPEATABLE_READ):
        conn.isolation_level = level
        with conn.transaction():
            conn.execute("UPDATE account SET balance = balance + 1 WHERE id = 1")
            levels.append(value(conn, "SHOW transaction_isolation"))
    conn.isolation_level = None
    conn.read_only = True

    def refused():
        with conn.transaction():
            conn.execute("UPDATE account SET balance = 0 WHERE id = 1")

    error = attempt(refused)
    conn.read_only = None
    balance = value(conn, "SELECT balance FROM account WHERE id = 1")
    return dict(levels=levels, readonly=state(error), balance=balance), dict(error=detail_of(error))


def errors(conn, other):
    unknown = attempt(lambda: conn.execute("SELECT id, nosuch FROM account"))
    positioned = attempt(lambda: conn.execute("SELECT nosuch FROM account WHERE id = %s", (1,)))
    conn.autocommit = False
    conn.execute("INSERT INTO event (what) VALUES ('lost')")
    twice = attempt(lambda: conn.execute(DUPLICATE))
    aborted = attempt(lambda: conn.execute("SELECT 1"))
    status = conn.info.transaction_status.name
    conn.commit()
    conn.autocommit = True
    result = dict(sqlstate=state(unknown), duplicate=state(twice), constraint=twice.diag.constraint_name, aborted=state(aborted),
                  rows=value(conn, COUNT_EVENTS))
    return result, dict(errors=[detail_of(e) for e in (unknown, positioned, twice, aborted)], status=status)


def cancel(conn, other):
    def when_it_sleeps():
        while value(other, SLEEPING) == 0:
            time.sleep(0.01)
        conn.cancel()

    canceling = threading.Thread(target=when_it_sleeps)
    canceling.start()
    error = attempt(lambda: conn.execute(SLOW_UPDATE))
    canceling.join()
    return (dict(sqlstate=state(error), balance=value(conn, "SELECT balance FROM account WHERE id = 1"), usable=value(conn, "SELECT 1")),
            dict(error=detail_of(error)))


def notify(conn, other):
    heard = []
    conn.add_notify_handler(heard.append)
    conn.execute("LISTEN news")
    other.execute("SELECT pg_notify('news', %s)", ("one",))
    while not heard:
        conn.execute("SELECT 1")
    conn.execute("NOTIFY news, 'two'")
    waiting = conn.notifies()
    while len(heard) < 2:
        heard.append(next(waiting))  # unless it came with the answer to NOTIFY
    waiting.close()
    return dict(payloads=[n.payload for n in heard]), dict(own=[n.pid == conn.info.backend_pid for n in heard])


def large_object(conn, other):
    """Uses SQL functions, because the driver has no interface for large objects."""
    result = {}
    with conn.transaction():
        oid = value(conn, "SELECT lo_from_bytea(0, %s)", digits(100000))
        fd = value(conn, "SELECT lo_open(%s, 393216)", oid)  # to read and to write
        result["size"] = value(conn, "SELECT lo_lseek(%s, 0, 2)", fd)
        value(conn, "SELECT lo_lseek(%s, 50005, 0)", fd)
        result["read"] = value(conn, "SELECT loread(%s, 5)", fd).decode()
        value(conn, "SELECT lo_truncate(%s, 10)", fd)
        result["truncated"] = value(conn, "SELECT lo_lseek(%s, 0, 2)", fd)
        value(conn, "SELECT lo_unlink(%s)", oid)
    result["gone"] = state(attempt(lambda: value(conn, "SELECT lo_get(4000000000)")))
    return result, None


def alone(conn, other):
    tags = [conn.execute(sql).statusmessage for sql in ALONE]
    rows = value(conn, COUNT_EVENTS)
    index = value(conn, "SELECT count(*) FROM pg_indexes WHERE indexname = 'account_balance'")
    conn.execute("DROP INDEX CONCURRENTLY account_balance")
    return dict(rows=rows, index=index), dict(tags=tags)


def scenarios():
    with connect() as other:  # it stays, so that the worker does not leave between two scenarios
        for run in (types, prepared, batch, batch_error, pipeline, multi, copy_in, copy_error, copy_fail, copy_out, cursor, savepoint,
                    transaction, errors, cancel, notify, large_object, alone):
            def fresh():
                other.execute("SELECT reset_all()")
                with connect() as conn:
                    return run(conn, other)

            report("error" if run is errors else run.__name__, fresh)


def one_pool():
    return ConnectionPool("", min_size=1, max_size=1, kwargs=dict(autocommit=True))


def write(conn):
    conn.execute("UPDATE account SET balance = %s WHERE id = %s", (0, 1))


def refusals(conn):
    """Tries each way to write."""
    result = dict(role=value(conn, "SHOW fencepost.role"), read=value(conn, "SELECT balance FROM account WHERE id = %s", 1))
    error = attempt(lambda: write(conn))
    result.update(write=state(error), severity=error and error.diag.severity)
    result["simple"] = state(attempt(lambda: conn.execute("UPDATE account SET balance = 0")))

    def batch():
        with conn.pipeline():
            value(conn, "SELECT balance FROM account WHERE id = %s", 1)
            write(conn)

    result["batch"] = state(attempt(batch))

    def copy():
        with conn.cursor().copy("COPY account FROM STDIN") as copy:
            copy.write("1000\t1\n")

    result["copy"] = state(attempt(copy))

    def transaction():
        with conn.transaction():
            value(conn, "SELECT balance FROM account WHERE id = %s", 1)
            write(conn)

    result["transaction"] = state(attempt(transaction))
    return result


def follower():
    with one_pool() as pool:
        def run():
            with pool.connection() as conn:
                pid = conn.info.backend_pid
                result = refusals(conn)
            with pool.connection() as conn:
                result.update(kept=conn.info.backend_pid == pid, again=value(conn, "SELECT balance FROM account WHERE id = 1"))
            return result, None

        report("follower", run)


def told(error):
    """The SQLSTATE, or only the text if the server has closed the connection."""
    text = re.search(r"worker \S+ was superseded on resource \w+", str(error))
    return state(error) if error is None or error.sqlstate or not text else text.group()


def stale(in_transaction):
    with one_pool() as pool:
        def run():
            with pool.connection() as conn:
                pid = conn.info.backend_pid
                conn.execute("UPDATE account SET balance = 101 WHERE id = 1")
                if in_transaction:
                    conn.execute("BEGIN")
                value(conn, "SELECT balance FROM account WHERE id = 1")
                wait_to_be_superseded()
                error = attempt(lambda: write(conn))
            result = dict(sqlstate=told(error), severity=error and error.diag.severity)
            with pool.connection() as conn:
                result.update(broken=conn.info.backend_pid != pid, role=value(conn, "SHOW fencepost.role"))
                result["again"] = state(attempt(lambda: write(conn)))
            return result, None

        report("stale_transaction" if in_transaction else "stale", run)


PARTS = dict(scenarios=scenarios, follower=follower, stale=lambda: stale(False), stale_transaction=lambda: stale(True))

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
