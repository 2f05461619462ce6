"""The pool of SQLAlchemy, with psycopg 2: pool_sqlalchemy.py pool"""

import pool
import sqlalchemy

# libpq finds the rest in its variables.
engine = sqlalchemy.create_engine("postgresql+psycopg2://", pool_size=3, max_overflow=0)
INSERT = sqlalchemy.text("INSERT INTO work (what) VALUES (:what)")


def insert():
    try:
        with engine.begin() as connection:
            connection.execute(INSERT, {"what": "sqlalchemy"})
    except sqlalchemy.exc.DBAPIError as e:
        return e.orig.pgcode or type(e).__name__
    return "ok"


pool.work(insert)
