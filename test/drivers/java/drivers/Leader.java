package drivers;

import static drivers.Db.*;
import static drivers.Lines.*;

import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Types;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.postgresql.PGNotification;
import org.postgresql.PGStatement;
import org.postgresql.copy.CopyIn;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;

/** What a worker does that leads. */
final class Leader {
  static final String SLEEPING =
      "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";

  private Leader() {}

  static void scenarios() throws Exception {
    Map<String, Scenario> all = new LinkedHashMap<>();
    all.put("types", Leader::types);
    all.put("prepared", Leader::prepared);
    all.put("batch", Leader::batch);
    all.put("batch_error", Leader::batchError);
    all.put("pipeline", null);
    all.put("multi", Leader::multi);
    all.put("copy_in", Leader::copyIn);
    all.put("copy_error", Leader::copyError);
    all.put("copy_fail", Leader::copyFail);
    all.put("copy_out", Leader::copyOut);
    all.put("cursor", Leader::cursor);
    all.put("savepoint", Leader::savepoint);
    all.put("transaction", Leader::transaction);
    all.put("error", Leader::errors);
    all.put("cancel", Leader::cancel);
    all.put("notify", Leader::notifications);
    all.put("large_object", Leader::largeObject);
    all.put("alone", Leader::alone);
    try (Connection other = connect()) { // it stays, so that the worker does not leave between two scenarios
      for (var entry : all.entrySet()) {
        if (entry.getValue() == null) {
          out.println(json(map("scenario", entry.getKey(), "lacks", "has one Sync for a batch")));
          continue;
        }
        report(entry.getKey(), () -> {
          run(other, "SELECT reset_all()");
          try (Connection c = connect()) {
            return entry.getValue().run(c, other);
          }
        });
      }
    }
  }

  static Outcome types(Connection c, Connection other) throws Exception {
    String sql = """
        INSERT INTO typed (i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing) VALUES (?, ?, ?, ?, ?, ?, ?, ?::jsonb, ?, ?, ?)
        RETURNING i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing""";
    try (PreparedStatement s = c.prepareStatement(sql)) {
      s.setInt(1, 7);
      s.setLong(2, 9007199254740993L);
      s.setBigDecimal(3, new BigDecimal("12.50"));
      s.setString(4, "h\u00e9llo; -- '$1");
      s.setBoolean(5, true);
      s.setBytes(6, new byte[] {0, (byte) 255, 39});
      s.setObject(7, OffsetDateTime.ofInstant(Instant.parse("2020-02-03T04:05:06.789Z"), ZoneOffset.UTC));
      s.setString(8, "{\"x\": [1, null]}");
      s.setArray(9, c.createArrayOf("int4", new Integer[] {1, 2, 3}));
      s.setObject(10, UUID.fromString("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"));
      s.setNull(11, Types.VARCHAR);
      try (ResultSet r = s.executeQuery()) {
        r.next();
        List<Object> names = new ArrayList<>();
        for (int i = 1; i <= r.getMetaData().getColumnCount(); i++) {
          names.add(r.getMetaData().getColumnTypeName(i) + " of " + r.getMetaData().getTableName(i));
        }
        String at = r.getObject(7, OffsetDateTime.class).withOffsetSameInstant(ZoneOffset.UTC)
            .format(DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"));
        return new Outcome(map("int4", r.getInt(1), "int8", Long.toString(r.getLong(2)), "numeric", r.getBigDecimal(3).toString(),
            "text", r.getString(4), "bool", r.getBoolean(5), "bytea", HexFormat.of().formatHex(r.getBytes(6)),
            "timestamptz", at, "jsonb", new Json(r.getString(8)), "array", List.of((Integer[]) r.getArray(9).getArray()),
            "uuid", r.getObject(10, UUID.class), "null", r.getString(11)), names);
      }
    }
  }

  /** By default the driver prepares at the fifth use, and then takes binary results. */
  static Outcome prepared(Connection c, Connection other) throws Exception {
    List<Object> balances = new ArrayList<>();
    List<Object> named = new ArrayList<>();
    try (PreparedStatement s = c.prepareStatement("UPDATE account SET balance = balance + ? WHERE id = ? RETURNING balance")) {
      for (int i = 1; i <= 12; i++) {
        s.setInt(1, i);
        s.setInt(2, i % 3 + 1);
        try (ResultSet r = s.executeQuery()) {
          r.next();
          balances.add(r.getInt(1));
        }
        named.add(s.unwrap(PGStatement.class).isUseServerPrepare());
      }
    }
    return new Outcome(map("balances", balances), named);
  }

  static Outcome batch(Connection c, Connection other) throws Exception {
    try (PreparedStatement s = c.prepareStatement("INSERT INTO event (what) VALUES (?)", Statement.RETURN_GENERATED_KEYS)) {
      for (int i = 0; i < 50; i++) {
        s.setString(1, Integer.toString(i));
        s.addBatch();
      }
      int affected = 0;
      for (int n : s.executeBatch()) {
        affected += n;
      }
      int keys = 0;
      try (ResultSet r = s.getGeneratedKeys()) {
        while (r.next()) {
          keys++;
        }
      }
      return new Outcome(map("affected", affected, "count", value(c, COUNT_EVENTS)), keys);
    }
  }

  static Outcome batchError(Connection c, Connection other) throws Exception {
    try (Statement s = c.createStatement()) {
      s.addBatch("INSERT INTO event (what) VALUES ('before')");
      s.addBatch(DUPLICATE);
      s.addBatch("INSERT INTO event (what) VALUES ('behind')");
      SQLException e = attempt(s::executeBatch);
      return new Outcome(map("sqlstate", state(e), "rows", value(c, COUNT_EVENTS), "usable", value(c, "SELECT 1")), detail(e));
    }
  }

  /** The driver splits the text and sends all of it as one batch. */
  static Outcome multi(Connection c, Connection other) throws Exception {
    List<Integer> numbers = new ArrayList<>();
    try (Statement s = c.createStatement()) {
      boolean rows = s.execute("SELECT 1; UPDATE account SET balance = 107 WHERE id = 1 RETURNING balance; SELECT 2");
      for (; rows; rows = s.getMoreResults()) {
        s.getResultSet().next();
        numbers.add(s.getResultSet().getInt(1));
      }
    }
    SQLException e = attempt(() -> run(c,
        "BEGIN; INSERT INTO event (what) VALUES ('kept'); COMMIT; INSERT INTO event (what) VALUES ('lost'); SELECT 1/0"));
    return new Outcome(map("first", numbers.get(0), "balance", numbers.get(1), "last", numbers.get(2), "sqlstate", state(e),
        "rows", value(c, COUNT_EVENTS)), detail(e));
  }

  static Outcome copyIn(Connection c, Connection other) throws Exception {
    StringBuilder rows = new StringBuilder();
    for (int i = 0; i < 1000; i++) {
      rows.append(i).append('\n');
    }
    long copied = own(c).getCopyAPI().copyIn("COPY event (what) FROM STDIN", new StringReader(rows.toString()));
    return new Outcome(map("copied", copied, "rows", value(c, COUNT_EVENTS)), null);
  }

  static Outcome copyError(Connection c, Connection other) throws Exception {
    SQLException e = attempt(() -> own(c).getCopyAPI().copyIn("COPY account FROM STDIN", new StringReader("1000\t1\n1\t1\n")));
    return new Outcome(map("sqlstate", state(e), "rows", value(c, "SELECT count(*) FROM account"), "usable", value(c, "SELECT 1")),
        detail(e));
  }

  static Outcome copyFail(Connection c, Connection other) throws Exception {
    CopyIn copy = own(c).getCopyAPI().copyIn("COPY event (what) FROM STDIN");
    byte[] row = "lost\n".getBytes(StandardCharsets.UTF_8);
    copy.writeToCopy(row, 0, row.length);
    copy.cancelCopy();
    return new Outcome(map("rows", value(c, COUNT_EVENTS), "usable", value(c, "SELECT 1")), null);
  }

  static Outcome copyOut(Connection c, Connection other) throws Exception {
    StringWriter text = new StringWriter();
    long count = own(c).getCopyAPI().copyOut("COPY (SELECT * FROM account ORDER BY id) TO STDOUT", text);
    String[] rows = text.toString().split("\n");
    return new Outcome(map("rows", rows.length, "first", rows[0], "last", rows[rows.length - 1]), count);
  }

  /** A portal of seven rows at a time, with other statements between. */
  static Outcome cursor(Connection c, Connection other) throws Exception {
    c.setAutoCommit(false);
    int rows = 0;
    int sum = 0;
    int updated = 0;
    try (PreparedStatement s = c.prepareStatement("SELECT id FROM account ORDER BY id")) {
      s.setFetchSize(7);
      try (ResultSet r = s.executeQuery()) {
        while (r.next()) {
          int id = r.getInt(1);
          rows++;
          sum += id;
          if (id % 10 == 0) {
            updated += update(c, "UPDATE account SET balance = ? WHERE id = ?", id, id);
          }
        }
      }
    }
    c.commit();
    return new Outcome(map("rows", rows, "sum", sum, "updated", updated), null);
  }

  static Outcome savepoint(Connection c, Connection other) throws Exception {
    c.setAutoCommit(false);
    run(c, "UPDATE account SET balance = 1 WHERE id = 1");
    Savepoint a = c.setSavepoint();
    run(c, "UPDATE account SET balance = 2 WHERE id = 2");
    SQLException e = attempt(() -> run(c, "SELECT 1/0"));
    c.rollback(a);
    Savepoint b = c.setSavepoint("b");
    run(c, "UPDATE account SET balance = 3 WHERE id = 3");
    c.releaseSavepoint(b);
    c.commit();
    return new Outcome(map("sqlstate", state(e), "balances", column(c, "SELECT balance FROM account WHERE id < 4 ORDER BY id")), detail(e));
  }

  static Outcome transaction(Connection c, Connection other) throws Exception {
    List<Object> levels = new ArrayList<>();
    for (int level : new int[] {Connection.TRANSACTION_SERIALIZABLE, Connection.TRANSACTION_REPEATABLE_READ}) {
      c.setTransactionIsolation(level);
      c.setAutoCommit(false);
      update(c, "UPDATE account SET balance = balance + ? WHERE id = 1", 1);
      levels.add(value(c, "SHOW transaction_isolation"));
      c.commit();
      c.setAutoCommit(true);
    }
    c.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
    c.setReadOnly(true);
    c.setAutoCommit(false);
    SQLException e = attempt(() -> update(c, "UPDATE account SET balance = 0 WHERE id = ?", 1));
    c.rollback();
    c.setReadOnly(false);
    return new Outcome(map("levels", levels, "readonly", state(e), "balance", value(c, READ)), detail(e));
  }

  static Outcome errors(Connection c, Connection other) throws Exception {
    SQLException unknown = attempt(() -> run(c, "SELECT id, nosuch FROM account"));
    SQLException positioned = attempt(() -> value(c, "SELECT nosuch FROM account WHERE id = ?", 1));
    c.setAutoCommit(false);
    run(c, "INSERT INTO event (what) VALUES ('lost')");
    SQLException twice = attempt(() -> run(c, DUPLICATE));
    SQLException aborted = attempt(() -> run(c, "SELECT 1"));
    SQLException committed = attempt(c::commit);
    c.rollback();
    c.setAutoCommit(true);
    List<Object> details = new ArrayList<>();
    for (SQLException e : new SQLException[] {unknown, positioned, twice, aborted, committed}) {
      details.add(detail(e));
    }
    return new Outcome(map("sqlstate", state(unknown), "duplicate", state(twice), "constraint", words(twice).getConstraint(),
        "aborted", state(aborted), "rows", value(c, COUNT_EVENTS)), details);
  }

  static Outcome cancel(Connection c, Connection other) throws Exception {
    try (Statement s = c.createStatement()) {
      var canceling = CompletableFuture.runAsync(() -> {
        try {
          while ((Long) value(other, SLEEPING) == 0) {
            Thread.sleep(10);
          }
          s.cancel();
        } catch (Exception e) {
          throw new RuntimeException(e);
        }
      });
      SQLException e = attempt(() -> s.execute("UPDATE account SET balance = 0 FROM pg_sleep(60) WHERE id = 1"));
      canceling.join();
      return new Outcome(map("sqlstate", state(e), "balance", value(c, READ), "usable", value(c, "SELECT 1")), detail(e));
    }
  }

  static Outcome notifications(Connection c, Connection other) throws Exception {
    run(c, "LISTEN news");
    value(other, "SELECT pg_notify('news', ?)::text", "one");
    List<Object> payloads = new ArrayList<>();
    List<Object> from = new ArrayList<>();
    while (payloads.size() < 2) {
      PGNotification[] heard = own(c).getNotifications(60_000);
      for (PGNotification n : heard) {
        payloads.add(n.getParameter());
        from.add(n.getPID() == own(c).getBackendPID());
      }
      if (payloads.size() == 1) {
        run(c, "NOTIFY news, 'two'");
      }
    }
    return new Outcome(map("payloads", payloads), from);
  }

  /** The driver's large objects use the function call message. */
  static Outcome largeObject(Connection c, Connection other) throws Exception {
    c.setAutoCommit(false);
    LargeObjectManager manager = own(c).getLargeObjectAPI();
    long oid = manager.createLO();
    byte[] data = "0123456789".repeat(10000).getBytes(StandardCharsets.US_ASCII);
    LargeObject object = manager.open(oid, LargeObjectManager.READWRITE);
    object.write(data);
    long size = object.size64();
    object.seek64(50005, LargeObject.SEEK_SET);
    String read = new String(object.read(5), StandardCharsets.US_ASCII);
    object.truncate64(10);
    long truncated = object.size64();
    object.close();
    manager.delete(oid);
    c.commit();
    SQLException gone = attempt(() -> manager.open(oid));
    c.rollback();
    return new Outcome(map("size", size, "read", read, "truncated", truncated, "gone", state(gone)), severity(gone));
  }

  static Outcome alone(Connection c, Connection other) throws Exception {
    for (String sql : new String[] {
        "VACUUM account", "CREATE INDEX CONCURRENTLY account_balance ON account (balance)", "CALL chunks(3)", "ANALYZE account"}) {
      run(c, sql);
    }
    Map<String, Object> result = map("rows", value(c, COUNT_EVENTS),
        "index", value(c, "SELECT count(*) FROM pg_indexes WHERE indexname = 'account_balance'"));
    run(c, "DROP INDEX CONCURRENTLY account_balance");
    return new Outcome(result, null);
  }
}
