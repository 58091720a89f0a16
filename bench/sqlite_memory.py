"""An in-memory SQLite database: load, index, group, look up.

    sqlite_memory.py [ORDERS] [LOOKUPS] [MORE]      about 140 bytes an order, and MORE; default 2.5 million, 340 MiB
"""

import random
import sqlite3
import sys

from phases import Phases

orders = int(sys.argv[1]) if len(sys.argv) > 1 else 2_500_000
customers = max(1, orders // 20)
lookups = int(sys.argv[2]) if len(sys.argv) > 2 else orders // 25
more = " " * int(sys.argv[3]) if len(sys.argv) > 3 else ""
rng = random.Random(5)
phases = Phases(orders)


def item(k):
    return f"item-{k:05d} large boxed set, second edition, ships from warehouse {k % 31} in two parcels; lot {k * 7919:010d}{more}"


def rows():
    for i in range(orders):
        yield i, rng.randrange(customers), item(rng.randrange(5000)), rng.randrange(10_000)


db = sqlite3.connect(":memory:")
db.execute("create table orders(id integer primary key, customer int, item text, amount int)")
db.executemany("insert into orders values(?,?,?,?)", rows())
phases.end("load")
db.execute("create index by_customer on orders(customer)")
phases.end("index")
best = "select item, count(*), sum(amount) from orders group by item order by 3 desc, 1 limit 5"
for name, count, amount in db.execute(best):
    print(name.split()[0], count, amount)
phases.end("group")
of_customer = "select coalesce(sum(amount), 0) from orders where customer = ?"
print(sum(db.execute(of_customer, (rng.randrange(customers),)).fetchone()[0] for _ in range(lookups)))
phases.end("lookups", lookups)
