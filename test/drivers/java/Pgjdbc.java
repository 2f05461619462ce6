import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringReader;
import java.io.StringWriter;
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
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyIn;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/**
 * The driver pgjdbc: Pgjdbc scenarios|follower|stale|stale_transaction. See the Go package above for what it does.
 */
public final class Pgjdbc {
  static final String SLEEPING =
      "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
  static final String COUNT_EVENTS = "SELECT count(*) FROM event";
  static final String READ = "SELECT balance FROM account WHERE id = 1";
  static final String DUPLICATE = "INSERT INTO account VALUES (1, 1)";

  static final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  public static void main(String[] args) throws Exception {
    switch (args[0]) {
      case "scenarios" -> scenarios();
      case "follower" -> follower();
      case "stale", "stale_transaction" -> stale(args[0]);
      default -> throw new IllegalArgumentException(args[0]);
    }
  }

  // ---- connections and values

  static Connection connect() throws SQLException {
    return source().getConnection();
  }

  static org.postgresql.ds.PGSimpleDataSource source() throws SQLException {
    var source = new org.postgresql.ds.PGSimpleDataSource();
    configure(source);
    return source;
  }

  static void configure(org.postgresql.ds.common.BaseDataSource source) throws SQLException {
    Map<String, String> env = System.getenv();
    source.setServerNames(new String[] {env.get("PGHOST")});
    source.setPortNumbers(new int[] {Integer.parseInt(env.get("PGPORT"))});
    source.setDatabaseName(env.get("PGDATABASE"));
    source.setUser(env.get("PGUSER"));
    source.setSslMode("disable");
    if (env.containsKey("PGOPTIONS")) {
      source.setOptions(env.get("PGOPTIONS"));
    }
  }

  static PGConnection own(Connection c) throws SQLException {
    return c.unwrap(PGConnection.class);
  }

  static void run(Connection c, String sql) throws SQLException {
    try (Statement s = c.createStatement()) {
      s.execute(sql);
    }
  }

  static Object value(Connection c, String sql, Object... args) throws SQLException {
    return column(c, sql, args).get(0);
  }

  static List<Object> column(Connection c, String sql, Object... args) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(sql)) {
      for (int i = 0; i < args.length; i++) {
        s.setObject(i + 1, args[i]);
      }
      List<Object> all = new ArrayList<>();
      try (ResultSet rows = s.executeQuery()) {
        while (rows.next()) {
          all.add(rows.getObject(1));
        }
      }
      return all;
    }
  }

  static int update(Connection c, String sql, Object... args) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(sql)) {
      for (int i = 0; i < args.length; i++) {
        s.setObject(i + 1, args[i]);
      }
      return s.executeUpdate();
    }
  }

  interface Action {
    void run() throws Exception;
  }

  /** The error that an action ends with, null without one. */
  static SQLException attempt(Action action) throws Exception {
    try {
      action.run();
      return null;
    } catch (SQLException e) {
      return e;
    }
  }

  static String state(SQLException e) {
    if (e == null) {
      return "ok";
    }
    return e.getSQLState() == null ? e.toString() : e.getSQLState();
  }

  /** The server's words of an error. A failed batch has them in its cause. */
  static ServerErrorMessage words(Throwable e) {
    for (; e != null; e = e.getCause()) {
      if (e instanceof PSQLException p && p.getServerErrorMessage() != null) {
        return p.getServerErrorMessage();
      }
    }
    return null;
  }

  static String severity(SQLException e) {
    ServerErrorMessage m = words(e);
    return m == null ? "" : m.getSeverity();
  }

  static Object detail(SQLException e) {
    ServerErrorMessage m = words(e);
    if (m == null) {
      return e == null ? null : e.toString();
    }
    return map("class", e.getClass().getName(), "severity", m.getSeverity(), "code", m.getSQLState(), "message", m.getMessage(),
        "detail", m.getDetail(), "hint", m.getHint(), "position", m.getPosition(), "where", m.getWhere(), "table", m.getTable(),
        "constraint", m.getConstraint(), "routine", m.getRoutine(), "text", e.getMessage());
  }

  // ---- lines

  /** Text that is JSON already. */
  record Json(String text) {}

  static Map<String, Object> map(Object... pairs) {
    Map<String, Object> m = new LinkedHashMap<>();
    for (int i = 0; i < pairs.length; i += 2) {
      m.put((String) pairs[i], pairs[i + 1]);
    }
    return m;
  }

  static String json(Object o) {
    if (o == null || o instanceof Number || o instanceof Boolean) {
      return String.valueOf(o);
    }
    if (o instanceof Json j) {
      return j.text();
    }
    if (o instanceof Map<?, ?> m) {
      List<String> parts = new ArrayList<>();
      m.forEach((k, v) -> parts.add(json(k) + ":" + json(v)));
      return "{" + String.join(",", parts) + "}";
    }
    if (o instanceof List<?> l) {
      return "[" + String.join(",", l.stream().map(Pgjdbc::json).toList()) + "]";
    }
    StringBuilder b = new StringBuilder("\"");
    for (char ch : o.toString().toCharArray()) {
      if (ch == '"' || ch == '\\' || ch < ' ') {
        b.append(String.format("\\u%04x", (int) ch));
      } else {
        b.append(ch);
      }
    }
    return b.append('"').toString();
  }

  record Outcome(Map<String, Object> result, Object detail) {}

  interface Scenario {
    Outcome run(Connection c, Connection other) throws Exception;
  }

  interface Report {
    Outcome run() throws Exception;
  }

  static void report(String name, Report scenario) {
    Map<String, Object> line = map("scenario", name);
    try {
      Outcome o = scenario.run();
      line.put("result", o.result());
      line.put("detail", o.detail());
    } catch (Exception e) {
      StringWriter trace = new StringWriter();
      e.printStackTrace(new java.io.PrintWriter(trace));
      line.put("failed", trace.toString());
    }
    out.println(json(line));
  }

  // ---- the scenarios of a leader

  static void scenarios() throws Exception {
    Map<String, Scenario> all = new LinkedHashMap<>();
    all.put("types", Pgjdbc::types);
    all.put("prepared", Pgjdbc::prepared);
    all.put("batch", Pgjdbc::batch);
    all.put("batch_error", Pgjdbc::batchError);
    all.put("pipeline", null);
    all.put("multi", Pgjdbc::multi);
    all.put("copy_in", Pgjdbc::copyIn);
    all.put("copy_error", Pgjdbc::copyError);
    all.put("copy_fail", Pgjdbc::copyFail);
    all.put("copy_out", Pgjdbc::copyOut);
    all.put("cursor", Pgjdbc::cursor);
    all.put("savepoint", Pgjdbc::savepoint);
    all.put("transaction", Pgjdbc::transaction);
    all.put("error", Pgjdbc::errors);
    all.put("cancel", Pgjdbc::cancel);
    all.put("notify", Pgjdbc::notifications);
    all.put("large_object", Pgjdbc::largeObject);
    all.put("alone", Pgjdbc::alone);
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
      s.setBigDecimal(3, new java.math.BigDecimal("12.50"));
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
            "text", r.getString(4), "bool", r.getBoolean(5), "bytea", java.util.HexFormat.of().formatHex(r.getBytes(6)),
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
        named.add(s.unwrap(org.postgresql.PGStatement.class).isUseServerPrepare());
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

  // ---- the other roles

  static int write(Connection c) throws SQLException {
    return update(c, "UPDATE account SET balance = ? WHERE id = ?", 0, 1);
  }

  /** Tries each way to write. */
  static Map<String, Object> refusals(Connection c) throws Exception {
    Map<String, Object> result = map("role", value(c, "SHOW fencepost.role"), "read", value(c, READ));
    SQLException refused = attempt(() -> write(c));
    result.put("write", state(refused));
    result.put("severity", severity(refused));
    result.put("simple", state(attempt(() -> {
      try (Statement s = c.createStatement()) {
        s.executeUpdate("UPDATE account SET balance = 0");
      }
    })));
    try (PreparedStatement s = c.prepareStatement("UPDATE account SET balance = ?")) {
      for (int i = 0; i < 3; i++) {
        s.setInt(1, i);
        s.addBatch();
      }
      result.put("batch", state(attempt(s::executeBatch)));
    }
    result.put("copy", state(attempt(() -> own(c).getCopyAPI().copyIn("COPY account FROM STDIN", new StringReader("1000\t1\n")))));
    c.setAutoCommit(false);
    value(c, READ);
    result.put("transaction", state(attempt(() -> write(c))));
    c.rollback();
    c.setAutoCommit(true);
    return result;
  }

  static void follower() {
    report("follower", () -> {
      var pool = new Pool();
      Connection c = pool.borrow();
      int pid = own(c).getBackendPID();
      Map<String, Object> result = refusals(c);
      c.close();
      c = pool.borrow();
      result.put("kept", own(c).getBackendPID() == pid);
      result.put("again", value(c, READ));
      pool.end();
      return new Outcome(result, null);
    });
  }

  static void stale(String part) {
    report(part, () -> {
      var pool = new Pool();
      Connection c = pool.borrow();
      int pid = own(c).getBackendPID();
      run(c, "UPDATE account SET balance = 101 WHERE id = 1");
      c.setAutoCommit(part.equals("stale"));
      value(c, READ);
      out.println("{\"ready\": true}");
      new BufferedReader(new InputStreamReader(System.in)).readLine();
      Connection leading = c;
      SQLException late = attempt(() -> write(leading));
      Map<String, Object> result = map("sqlstate", state(late), "severity", severity(late));
      attempt(c::close);
      c = pool.borrow();
      result.put("broken", own(c).getBackendPID() != pid);
      result.put("role", value(c, "SHOW fencepost.role"));
      Connection next = c;
      result.put("again", state(attempt(() -> write(next))));
      pool.end();
      return new Outcome(result, null);
    });
  }

  /**
   * A pool of one connection, as small as can be: the driver has none. It drops what is closed or no more valid, as the pools do.
   */
  static final class Pool {
    private final org.postgresql.ds.PGConnectionPoolDataSource source = new org.postgresql.ds.PGConnectionPoolDataSource();
    private javax.sql.PooledConnection pooled;
    private boolean broken;

    Pool() throws SQLException {
      configure(source);
    }

    Connection borrow() throws SQLException {
      if (pooled != null && !broken) {
        try {
          Connection c = pooled.getConnection();
          if (c.isValid(60)) {
            return c;
          }
        } catch (SQLException e) {
          // It is closed, which the driver told nobody: ZF001 is not among the states that it knows to be fatal.
        }
      }
      broken = false;
      pooled = source.getPooledConnection();
      pooled.addConnectionEventListener(new javax.sql.ConnectionEventListener() {
        public void connectionClosed(javax.sql.ConnectionEvent e) {}

        public void connectionErrorOccurred(javax.sql.ConnectionEvent e) {
          broken = true;
        }
      });
      return pooled.getConnection();
    }

    void end() throws SQLException {
      pooled.close();
    }
  }
}
