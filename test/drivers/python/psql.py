"""psql: psql.py scenarios|follower|stale|stale_transaction

Python only feeds psql and reads what it prints; nothing here speaks to the
server by itself.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time

from common import *

PSQL = ["psql", "-X", "-A", "-t", "-F", "\t", "-P", "null=NULL", "-v", "VERBOSITY=verbose", "-f", "-"]
REFUSED = re.compile(r"^(?:psql:\S+ )?(ERROR|FATAL):  (\w{5}): ", re.MULTILINE)
END = "-- end of an answer --"


class Psql:
    """A psql process that gets its input piece by piece."""

    def __init__(self):
        self.process = subprocess.Popen(PSQL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def feed(self, script):
        self.process.stdin.write(script + "\n\\echo " + END + "\n")
        self.process.stdin.flush()

    def answer(self):
        """Reads psql's output for the input so far, or to its end."""
        lines = []
        for line in self.process.stdout:
            if line.strip() == END:
                break
            lines.append(line)
        return "".join(lines)

    def ask(self, script):
        self.feed(script)
        return self.answer()

    def value(self, sql):
        return self.ask(sql).strip()


def states(text):
    return [code for severity, code in REFUSED.findall(text)]


def state(text):
    found = states(text)
    return found[0] if found else "ok"


def file_with(text):
    """A file for COPY and large objects; it is removed with its owner."""
    file = tempfile.NamedTemporaryFile("w", prefix="fencepost-psql-")
    file.write(text)
    file.flush()
    return file


def types(p, other):
    insert = INSERT_TYPED
    for literal in ("7", "9007199254740993", "12.50", "$$" + SOME_TEXT + "$$", "true", "'\\x00ff27'", "'2020-02-03T04:05:06.789Z'",
                    "'{\"x\": [1, null]}'", "'{1,2,3}'", "'" + SOME_UUID + "'", "NULL"):
        insert = insert.replace("%s", literal, 1)
    text = p.ask("SET timezone = 'UTC';\n" + insert + ";")
    i4, i8, num, txt, yes, raw, at, doc, numbers, uid, nothing = text.splitlines()[1].split("\t")
    result = dict(
        int4=int(i4), int8=i8, numeric=num, text=txt, bool=yes == "t", bytea=raw.removeprefix("\\x"),
        timestamptz=at.replace(" ", "T").removesuffix("+00") + "Z", jsonb=json.loads(doc),
        array=[int(n) for n in numbers.strip("{}").split(",")], uuid=uid, null=None if nothing == "NULL" else nothing,
    )
    return result, dict(text=text, described=p.ask("SELECT * FROM typed \\gdesc"))


def prepared(p, other):
    p.ask("PREPARE add (int, int) AS UPDATE account SET balance = balance + $1 WHERE id = $2 RETURNING balance;")
    text = p.ask("\n".join(f"EXECUTE add ({i}, {i % 3 + 1});" for i in range(1, 13)))
    balances = [int(line) for line in text.splitlines() if line.isdigit()]
    return dict(balances=balances), dict(text=text, deallocated=p.ask("DEALLOCATE add;"))


def multi(p, other):
    good = p.ask(TWO_QUERIES.replace(";", "\\;") + ";")
    bad = p.ask(FAILING_QUERIES.replace(";", "\\;") + ";")
    first, balance, last = [int(line) for line in good.splitlines() if line.isdigit()]
    return (dict(first=first, balance=balance, last=last, sqlstate=state(bad), rows=int(p.value(COUNT_EVENTS + ";"))),
            dict(good=good, bad=bad))


def copy_in(p, other):
    copied = p.ask("COPY event (what) FROM STDIN;\n" + "\n".join(str(i) for i in range(1000)) + "\n\\.")
    return dict(copied=int(copied.split()[1]), rows=int(p.value(COUNT_EVENTS + ";"))), dict(text=copied)


def copy_error(p, other):
    failed = p.ask("COPY account FROM STDIN;\n1000\t1\n1\t1\n\\.")
    return (dict(sqlstate=state(failed), rows=int(p.value(COUNT_ACCOUNTS + ";")), usable=int(p.value("SELECT 1;"))),
            dict(failed=failed))


def copy_out(p, other):
    rows = p.ask("COPY (SELECT * FROM account ORDER BY id) TO STDOUT;").splitlines()
    return dict(rows=len(rows), first=rows[0], last=rows[-1]), None


def cursor(p, other):
    """With FETCH_COUNT, psql itself declares a cursor and fetches from it."""
    p.ask("\\set FETCH_COUNT 7\nBEGIN;")
    ids = [int(line) for line in p.ask("SELECT id FROM account ORDER BY id;").splitlines()]
    updated = p.ask("UPDATE account SET balance = id WHERE id % 10 = 0;")
    committed = p.ask("COMMIT;")
    alone = p.ask("SELECT id FROM account ORDER BY id;").split()
    return (dict(rows=len(ids), sum=sum(ids), updated=int(updated.split()[1])),
            dict(committed=committed, outside=len(alone)))


def savepoint(p, other):
    text = p.ask("""BEGIN;
        UPDATE account SET balance = 1 WHERE id = 1; SAVEPOINT a;
        UPDATE account SET balance = 2 WHERE id = 2; SELECT 1/0;
        ROLLBACK TO a; UPDATE account SET balance = 3 WHERE id = 3; RELEASE a; COMMIT;""")
    balances = [int(b) for b in p.ask("SELECT balance FROM account WHERE id < 4 ORDER BY id;").split()]
    return dict(sqlstate=state(text), balances=balances), dict(text=text)


def transaction(p, other):
    levels = []
    for level in ("SERIALIZABLE", "REPEATABLE READ"):
        p.ask(f"BEGIN ISOLATION LEVEL {level}; UPDATE account SET balance = balance + 1 WHERE id = 1;")
        levels.append(p.value("SHOW transaction_isolation;"))
        p.ask("COMMIT;")
    text = p.ask("BEGIN READ ONLY; UPDATE account SET balance = 0 WHERE id = 1; ROLLBACK;")
    balance = int(p.value("SELECT balance FROM account WHERE id = 1;"))
    return dict(levels=levels, readonly=state(text), balance=balance), dict(text=text)


def errors(p, other):
    unknown = p.ask("SELECT id, nosuch FROM account;")
    p.ask("BEGIN; INSERT INTO event (what) VALUES ('lost');")
    twice = p.ask(DUPLICATE + ";")
    aborted = p.ask("SELECT 1;")
    committed = p.ask("COMMIT;")
    constraint = re.search(r"CONSTRAINT NAME:  (\w+)", twice)
    result = dict(sqlstate=state(unknown), duplicate=state(twice), constraint=constraint and constraint.group(1), aborted=state(aborted),
                  rows=int(p.value(COUNT_EVENTS + ";")))
    return result, dict(errors=[unknown, twice, aborted], committed=committed)


def cancel(p, other):
    """An interrupt cancels the statement, and ends a psql that reads a script."""
    p.feed(SLOW_UPDATE + ";")
    while other.value(SLEEPING + ";") == "0":
        time.sleep(0.01)
    p.process.send_signal(signal.SIGINT)
    text = p.answer()
    return (dict(sqlstate=state(text), balance=int(other.value("SELECT balance FROM account WHERE id = 1;")),
                 usable=int(other.value("SELECT 1;"))),
            dict(text=text))


def notify(p, other):
    p.ask("LISTEN news;")
    other.ask("SELECT pg_notify('news', 'one');")
    text = ""
    while "received" not in text:
        text = p.ask("SELECT 1;")
    text += p.ask("NOTIFY news, 'two';")
    pid = p.value("SELECT pg_backend_pid();")
    return (dict(payloads=re.findall(r'with payload "(\w+)"', text)),
            dict(own=[found == pid for found in re.findall(r"PID (\d+)", text)]))


def large_object(p, other):
    """By psql's own commands, which use the function call message."""
    with file_with(digits(100000).decode()) as source, tempfile.NamedTemporaryFile(prefix="fencepost-psql-") as target:
        p.ask(f"\\lo_import {source.name}\n\\set oid :LASTOID")
        size = int(p.value("SELECT length(lo_get(:oid));"))
        p.ask(f"\\lo_export :oid {target.name}")
        read = open(target.name).read()[50005:50010]
    p.ask("BEGIN; SELECT lo_truncate(lo_open(:oid, 393216), 10); COMMIT;")
    truncated = int(p.value("SELECT length(lo_get(:oid));"))
    unlinked = p.value("\\lo_unlink :oid").split()[0]
    gone = p.ask("SELECT lo_get(4000000000);")
    return dict(size=size, read=read, truncated=truncated, gone=state(gone)), dict(unlinked=unlinked, gone=gone)


def alone(p, other):
    tags = [p.ask(sql + ";") for sql in ALONE]
    rows = int(p.value(COUNT_EVENTS + ";"))
    index = int(p.value("SELECT count(*) FROM pg_indexes WHERE indexname = 'account_balance';"))
    tags.append(p.ask("DROP INDEX CONCURRENTLY account_balance;"))
    return dict(rows=rows, index=index), dict(tags=tags)


ONE_BY_ONE = "sends one message after the other"
LACKS = dict(batch=ONE_BY_ONE, batch_error=ONE_BY_ONE, pipeline=ONE_BY_ONE, copy_fail="cannot give up a COPY")


def scenarios():
    with Psql() as other:  # it stays, so that the worker does not leave between two scenarios
        for name in ("types", "prepared", "batch", "batch_error", "pipeline", "multi", "copy_in", "copy_error", "copy_fail", "copy_out", "cursor",
                     "savepoint", "transaction", "error", "cancel", "notify", "large_object", "alone"):
            if name in LACKS:
                print_line(scenario=name, lacks=LACKS[name])
                continue

            def fresh():
                other.ask("SELECT reset_all();")
                with Psql() as p:
                    return globals()["errors" if name == "error" else name](p, other)

            report(name, fresh)


WRITE = "UPDATE account SET balance = 0 WHERE id = 1;"
READ = "SELECT balance FROM account WHERE id = 1;"
PID = "SELECT pg_backend_pid();"


def follower():
    def run():
        with Psql() as p:
            pid = p.value(PID)
            result = dict(role=p.value("SHOW fencepost.role;"), read=int(p.value(READ)), batch="lacks")
            refused = p.ask("PREPARE late AS " + WRITE + "\nEXECUTE late;")
            result.update(write=state(refused), severity=(REFUSED.search(refused) or [None, ""])[1])
            result["simple"] = state(p.ask("UPDATE account SET balance = 0;"))
            with file_with("1000\t1\n") as rows:
                result["copy"] = state(p.ask(f"\\copy account from {rows.name}"))
            inside = p.ask("BEGIN;\n" + READ + "\n" + WRITE + "\nROLLBACK;")
            result["transaction"] = state(inside)
            result.update(kept=p.value(PID) == pid, again=int(p.value(READ)))
            return result, None

    report("follower", run)


def stale(in_transaction):
    def run():
        with Psql() as p:
            p.ask("UPDATE account SET balance = 101 WHERE id = 1;")
            if in_transaction:
                p.ask("BEGIN;")
            p.ask(READ)
            wait_to_be_superseded()
            refused = p.ask(WRITE)
            # It continues with its script, but only while it has a connection.
            try:
                broken = p.process.wait(10) == 2
            except subprocess.TimeoutExpired:
                broken = False
        result = dict(sqlstate=state(refused), severity=(REFUSED.search(refused) or [None, ""])[1], broken=broken)
        with Psql() as p:
            result.update(role=p.value("SHOW fencepost.role;"), again=state(p.ask(WRITE)))
        return result, None

    report("stale_transaction" if in_transaction else "stale", run)


PARTS = dict(scenarios=scenarios, follower=follower, stale=lambda: stale(False), stale_transaction=lambda: stale(True))

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
