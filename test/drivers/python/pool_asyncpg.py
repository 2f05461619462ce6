"""The pool of asyncpg: pool_asyncpg.py pool"""

import asyncio
import os
import threading

import asyncpg
import pool


async def insert(connections):
    try:
        async with connections.acquire() as connection:
            try:
                await connection.execute("INSERT INTO work (what) VALUES ($1)", "asyncpg")
            except asyncpg.InternalClientError:
                # The server has ended the connection while asyncpg was about to send. The
                # pool would wait for an answer before it takes the connection back.
                connection.terminate()
                raise
    except Exception as e:
        return getattr(e, "sqlstate", None) or type(e).__name__
    return "ok"


async def loop(connections):
    while True:
        if not pool.silent:
            pool.print_result(await insert(connections))
        await asyncio.sleep(pool.PAUSE)


async def main():
    # asyncpg does not read PGOPTIONS.
    settings = dict(s.split("=", 1) for s in os.environ["PGOPTIONS"].split("-c ") if "=" in s)
    settings = {name: value.strip() for name, value in settings.items()}
    connections = await asyncpg.create_pool(min_size=3, max_size=3, server_settings=settings)
    await asyncio.gather(*(loop(connections) for _ in range(pool.LOOPS)))


threading.Thread(target=pool.listen, daemon=True).start()
asyncio.run(main())
