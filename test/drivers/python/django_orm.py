"""Django, with psycopg2: django_orm.py scenarios|follower|stale|stale_transaction"""

import io
import os
import sys

import django
from django.conf import settings
from django.db import Error, connection, models, transaction

import common as c

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "CONN_MAX_AGE": 600,
            "OPTIONS": {"options": os.environ.get("PGOPTIONS", "")},
        }
    },
    USE_TZ=True,
)
django.setup()


class Account(models.Model):
    id = models.IntegerField(primary_key=True)
    balance = models.IntegerField()

    class Meta:
        app_label = "shop"
        db_table = "account"


class Model(models.Model):
    name = models.TextField(unique=True)
    doc = models.JSONField(null=True)

    class Meta:
        app_label = "shop"
        db_table = "model"


def one(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone()[0]


def attempt(run):
    """Returns None or the error of psycopg2 beneath that of Django."""
    try:
        run()
    except Error as e:
        return e.__cause__ or e
    return None


def state(e):
    return "ok" if e is None else getattr(e, "pgcode", None) or type(e).__name__


def detail(e):
    return [type(e).__name__, str(e), e.diag.severity, e.diag.message_detail]


def cursor():
    ids, updated = [], 0
    with transaction.atomic():
        # A cursor of the server, of which it fetches seven rows at a time.
        for account in Account.objects.order_by("id").iterator(chunk_size=7):
            ids.append(account.id)
            if account.id % 10 == 0:
                updated += Account.objects.filter(id=account.id).update(balance=account.id)
    return {"rows": len(ids), "sum": sum(ids), "updated": updated}, None


def copy_in():
    with connection.cursor() as cursor:
        cursor.copy_expert("COPY event (what) FROM STDIN", io.StringIO("".join(f"{i}\n" for i in range(1000))))
        copied = cursor.rowcount
    return {"copied": copied, "rows": one(c.COUNT_EVENTS)}, None


def copy_out():
    text = io.StringIO()
    with connection.cursor() as cursor:
        cursor.copy_expert("COPY (SELECT * FROM account ORDER BY id) TO STDOUT", text)
    rows = text.getvalue().splitlines()
    return {"rows": len(rows), "first": rows[0], "last": rows[-1]}, None


def savepoint():
    def inner():
        with transaction.atomic():
            Account.objects.filter(id=2).update(balance=2)
            one("SELECT 1/%s", 0)

    with transaction.atomic():
        Account.objects.filter(id=1).update(balance=1)
        error = attempt(inner)
        with transaction.atomic():
            Account.objects.filter(id=3).update(balance=3)
    balances = list(Account.objects.filter(id__lt=4).order_by("id").values_list("balance", flat=True))
    return {"sqlstate": state(error), "balances": balances}, detail(error)


def error():
    unknown = attempt(lambda: one("SELECT id, nosuch FROM account"))
    transaction.set_autocommit(False)
    one("INSERT INTO event (what) VALUES ('lost') RETURNING id")
    twice = attempt(lambda: Account.objects.create(id=1, balance=1))
    aborted = attempt(lambda: one("SELECT 1"))
    transaction.rollback()
    transaction.set_autocommit(True)
    return {
        "sqlstate": state(unknown),
        "duplicate": state(twice),
        "constraint": twice.diag.constraint_name,
        "aborted": state(aborted),
        "rows": one(c.COUNT_EVENTS),
    }, [detail(e) for e in (unknown, twice, aborted)]


def model():
    with connection.schema_editor() as editor:
        editor.create_model(Model)
    first = Model.objects.create(name="a", doc={"x": [1]}).id
    twice = attempt(lambda: Model.objects.create(name="a"))
    with connection.schema_editor() as editor:
        more = models.IntegerField(null=True)
        more.set_attributes_from_name("more")
        more.model = Model
        editor.add_field(Model, more)
    with connection.cursor() as cursor:
        columns = sorted(column.name for column in connection.introspection.get_table_description(cursor, "model"))
        constraints = sorted(connection.introspection.get_constraints(cursor, "model"))
    rows = Model.objects.filter(doc={"x": [1]}).count()
    with connection.schema_editor() as editor:
        editor.delete_model(Model)
    return {"first": first, "sqlstate": state(twice), "columns": columns, "rows": rows}, [detail(twice), constraints]


def read():
    return Account.objects.get(id=1).balance


def write():
    Account.objects.filter(id=1).update(balance=0)


def follower():
    def in_transaction():
        with transaction.atomic():
            read()
            write()

    pid = one("SELECT pg_backend_pid()")
    return {
        "role": one("SHOW fencepost.role"),
        "read": read(),
        "write": state(attempt(write)),
        "transaction": state(attempt(in_transaction)),
        "kept": one("SELECT pg_backend_pid()") == pid,
        "again": read(),
    }, None


def stale(in_transaction):
    def late():
        read()
        c.wait_to_be_superseded()
        write()

    Account.objects.filter(id=1).update(balance=101)
    pid = one("SELECT pg_backend_pid()")
    refused = attempt(transaction.atomic(late) if in_transaction else late)
    django.db.close_old_connections()  # as at the end of a request
    return {
        "sqlstate": state(refused),
        "broken": one("SELECT pg_backend_pid()") != pid,
        "role": one("SHOW fencepost.role"),
        "again": state(attempt(write)),
    }, None


part = sys.argv[1]
if part == "scenarios":
    for scenario in copy_in, copy_out, cursor, savepoint, error, model:
        one("SELECT reset_all()")
        c.report(scenario.__name__, scenario)
else:
    c.report(part, follower if part == "follower" else lambda: stale(part == "stale_transaction"))
