"""The console, by psycopg 3 and psycopg 2: console.py psycopg|psycopg2"""

import importlib
import os
import sys

from common import *


def look(connection):
    """Does not commit by itself, so that the driver sends BEGIN."""
    rows = []
    for _ in range(10):  # psycopg 3 prepares a statement that it has sent five times
        with connection.cursor() as cursor:
            cursor.execute("SHOW LEADERS")
            rows = [list(row) for row in cursor.fetchall()]
            names = [column[0] for column in cursor.description]
    connection.commit()
    rows = [dict(zip(names, row)) for row in rows]
    leaders = [[row["resource"], row["leader"], row["epoch"]] for row in rows if row["database"] == os.environ["LED"]]
    try:
        connection.cursor().execute("SHOW nothing")
    except driver.Error as e:
        refused = getattr(e, "sqlstate", None) or e.pgcode
    connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        ping = cursor.fetchone()[0]
    connection.rollback()
    return {"leaders": leaders, "refused": refused, "ping": ping}, None


driver = importlib.import_module(sys.argv[1])
report("console", lambda: look(driver.connect("")))
