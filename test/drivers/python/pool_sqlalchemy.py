"""The pool of SQLAlchemy: pool_sqlalchemy.py psycopg2 | psycopg"""

import sys

import pool
import sqlalchemy

# libpq finds the rest in its variables.
engine = sqlalchemy.create_engine(f"postgresql+{sys.argv[1]}://", pool_size=3, max_overflow=0)
INSERT = sqlalchemy.text("INSERT INTO work (what) VALUES (:what)")


def insert():
    try:
        with engine.begin() as connection:
            connection.execute(INSERT, {"what": "sqlalchemy"})
    except sqlalchemy.exc.DBAPIError as e:
        code = e.orig.sqlstate if sys.argv[1] == "psycopg" else e.orig.pgcode
        return code or type(e).__name__
    return "ok"


pool.work(insert)
