package drivers;

import static drivers.Lines.*;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.postgresql.PGConnection;
import org.postgresql.ds.PGSimpleDataSource;
import org.postgresql.ds.common.BaseDataSource;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/** Connections, values and errors. */
final class Db {
  static final String COUNT_EVENTS = "SELECT count(*) FROM event";
  static final String READ = "SELECT balance FROM account WHERE id = 1";
  static final String DUPLICATE = "INSERT INTO account VALUES (1, 1)";

  private Db() {}

  static Connection connect() throws SQLException {
    return source().getConnection();
  }

  static PGSimpleDataSource source() throws SQLException {
    var source = new PGSimpleDataSource();
    configure(source);
    return source;
  }

  static void configure(BaseDataSource source) throws SQLException {
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
}
