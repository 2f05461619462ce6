"""The driver psqlODBC: odbc.py scenarios|follower|stale|stale_transaction"""

import os
import sys

import pyodbc

import common as c

DRIVER = os.environ.get("PSQLODBC", "PostgreSQL Unicode")


def connect(more="", **options):
    """libpq finds in its variables what the driver does not ask for, such as PGOPTIONS."""
    return pyodbc.connect(
        f"Driver={DRIVER};Servername={os.environ['PGHOST']};Port={os.environ['PGPORT']};"
        f"Database={os.environ['PGDATABASE']};Username={os.environ['PGUSER']};{more}",
        **options,
    )


def one(db, sql, *values):
    return db.execute(sql, *values).fetchone()[0]


def attempt(run):
    """Returns ok, or the SQLSTATE of the error, and its text."""
    try:
        run()
    except pyodbc.Error as e:
        return e.args
    return "ok", None


def prepared(db, other):
    cursor = db.cursor()  # which prepares a statement that it runs again
    sql = "UPDATE account SET balance = balance + ? WHERE id = ? RETURNING balance"
    balances = [cursor.execute(sql, i, i % 3 + 1).fetchone()[0] for i in range(1, 13)]
    return {"balances": balances}, [str(column) for column in cursor.description]


def cursor(db, other):
    # Its own cursors, which it declares and fetches by sevens.
    db = connect("UseDeclareFetch=1;Fetch=7")
    ids, updated = [], 0
    for (id,) in db.execute("SELECT id FROM account ORDER BY id"):
        ids.append(id)
        if id % 10 == 0:
            updated += db.execute("UPDATE account SET balance = ? WHERE id = ?", id, id).rowcount
    db.commit()
    db.close()
    return {"rows": len(ids), "sum": sum(ids), "updated": updated}, None


def savepoint(db, other):
    # By default, the driver itself puts a savepoint in front of each statement.
    db.execute("UPDATE account SET balance = 1 WHERE id = 1")
    db.execute("SAVEPOINT a")
    db.execute("UPDATE account SET balance = 2 WHERE id = 2")
    error = attempt(lambda: db.execute("SELECT 1/?", 0).fetchall())
    db.execute("ROLLBACK TO a")
    db.execute("UPDATE account SET balance = 3 WHERE id = 3")
    db.execute("RELEASE a")
    db.commit()
    balances = [row[0] for row in db.execute("SELECT balance FROM account WHERE id < 4 ORDER BY id")]
    return {"sqlstate": error[0], "balances": balances}, error


def error(db, other):
    db.close()
    db = connect("Protocol=7.4-0")  # an error aborts the transaction
    unknown = attempt(lambda: db.execute("SELECT id, nosuch FROM account"))
    db.rollback()
    db.execute("INSERT INTO event (what) VALUES ('lost')")
    twice = attempt(lambda: db.execute(c.DUPLICATE))
    aborted = attempt(lambda: db.execute("SELECT 1"))
    db.rollback()
    return {
        "sqlstate": unknown[0],
        "duplicate": twice[0],
        "constraint": "account_pkey" if "account_pkey" in twice[1] else "",
        "aborted": aborted[0],
        "rows": one(db, c.COUNT_EVENTS),
    }, [unknown, twice, aborted]


def write(db):
    db.execute("UPDATE account SET balance = ? WHERE id = ?", 0, 1)


BALANCE = "SELECT balance FROM account WHERE id = ?"


def follower():
    db = connect(autocommit=True)
    pid = one(db, "SELECT pg_backend_pid()")
    result = {"role": one(db, "SHOW fencepost.role"), "read": one(db, BALANCE, 1)}
    result["write"] = attempt(lambda: write(db))[0]
    result["simple"] = attempt(lambda: db.execute("UPDATE account SET balance = 0"))[0]
    db.autocommit = False
    one(db, BALANCE, 1)
    result["transaction"] = attempt(lambda: write(db))[0]
    db.rollback()
    result["kept"] = one(db, "SELECT pg_backend_pid()") == pid
    result["again"] = one(db, BALANCE, 1)
    return result, None


def stale(transaction):
    db = connect(autocommit=not transaction)
    db.execute("UPDATE account SET balance = 101 WHERE id = 1")
    if transaction:
        db.commit()
    one(db, BALANCE, 1)
    c.wait_to_be_superseded()
    late = attempt(lambda: write(db))
    print(late, attempt(lambda: write(db)), file=sys.stderr)
    broken = attempt(lambda: one(db, "SELECT 1"))[0] != "ok"
    db = connect(autocommit=True)
    role = one(db, "SHOW fencepost.role")
    return {"sqlstate": late[0], "broken": broken, "role": role, "again": attempt(lambda: write(db))[0]}, None


def scenarios():
    other = connect(autocommit=True)
    for scenario in prepared, cursor, savepoint, error:
        other.execute("SELECT reset_all()").fetchall()
        c.report(scenario.__name__, lambda: scenario(connect(), other))


part = sys.argv[1]
if part == "scenarios":
    scenarios()
else:
    c.report(part, follower if part == "follower" else lambda: stale(part == "stale_transaction"))
