"""A worker whose stale writes are discarded, with psycopg and with SQLAlchemy: discard.py discard"""

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session, declarative_base
from sqlalchemy.orm.exc import StaleDataError

from common import report, wait_to_be_superseded


class Account(declarative_base()):
    """A row with optimistic locking: SQLAlchemy compares its balance in each UPDATE."""

    __tablename__ = "account"
    id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)
    balance = sqlalchemy.Column(sqlalchemy.Integer)
    __mapper_args__ = {"version_id_col": balance, "version_id_generator": False}


def discard():
    connection = psycopg.connect("", autocommit=True)  # libpq finds the rest in its variables
    session = Session(sqlalchemy.create_engine("postgresql+psycopg2://"), expire_on_commit=False)
    account = session.get(Account, 1)
    session.commit()
    account.balance = 101
    update = "UPDATE account SET balance = %s WHERE id = %s"
    connection.execute(update, (100, 2))
    wait_to_be_superseded()

    result = {}
    result["update"] = connection.execute(update, (0, 2)).rowcount
    result["role"] = connection.info.parameter_status("fencepost.role")
    with connection.transaction():
        cursor = connection.execute("INSERT INTO event (what) VALUES ('stale') RETURNING id")
        result["insert"], result["returned"] = cursor.rowcount, cursor.fetchall()
        result["read"] = connection.execute("SELECT count(*) FROM account").fetchone()[0]
        cursor = connection.cursor()
        cursor.executemany("INSERT INTO event (what) VALUES (%s)", [("stale",), ("stale",)])
        result["many"] = cursor.rowcount
    with connection.pipeline():
        cursors = [connection.execute(update, (i, i), prepare=True) for i in range(1, 4)]
    result["pipeline"] = [c.rowcount for c in cursors]
    try:
        connection.execute("TRUNCATE account")
    except psycopg.Error as e:
        result["truncate"] = e.sqlstate
    result["open"] = not connection.closed
    try:
        session.commit()
    except StaleDataError:
        result["optimistic"] = "StaleDataError"
    return result, None


report("discard", discard)
