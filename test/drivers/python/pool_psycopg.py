"""psycopg_pool, with psycopg 3: pool_psycopg.py pool"""

import pool
import psycopg
import psycopg_pool

# libpq finds the rest in its variables.
connections = psycopg_pool.ConnectionPool(min_size=3, max_size=3)


def insert():
    try:
        with connections.connection() as connection:
            connection.execute("INSERT INTO work (what) VALUES (%s)", ["psycopg"])
    except psycopg.Error as e:  # psycopg_pool.PoolTimeout is one
        return e.sqlstate or type(e).__name__
    return "ok"


pool.work(insert)
