#!/usr/bin/env python3
"""An elector in Redis: whoever has the lease leads, and a counter gives each holder a token.

REDIS is the URL of the server, such as redis://localhost:6379 or unix:///run/redis.sock. For
the rest see elected.py.

Redis decides only who may try. If it loses its data, or a failover loses its last writes, it
gives tokens that Fencepost has seen before, and those are refused (ZF001) until an operator
runs "fencepost generation bump --tokens".
"""

import os
import time
import uuid

import redis

from elected import RESOURCE, lead, say

TTL = 2000  # milliseconds

# Taking the lease and counting is one step. In two, a holder that pauses between them could get
# a higher token than its successor.
ACQUIRE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return redis.call('INCR', KEYS[2])
end
return 0
"""
RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""


def main():
    server = redis.Redis.from_url(os.environ["REDIS"])
    lease, counter = f"lease:{RESOURCE}", f"token:{RESOURCE}"
    acquire, renew = server.register_script(ACQUIRE), server.register_script(RENEW)
    say("waiting to be elected")
    while True:
        holder = uuid.uuid4().hex
        token = acquire(keys=[lease, counter], args=[holder, TTL])
        if token:
            lead(token, lambda: renew(keys=[lease], args=[holder, TTL]))
            say("waiting to be elected")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
