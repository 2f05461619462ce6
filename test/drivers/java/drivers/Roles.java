package drivers;

import static drivers.Db.*;
import static drivers.Lines.*;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Map;
import javax.sql.ConnectionEvent;
import javax.sql.ConnectionEventListener;
import javax.sql.PooledConnection;
import org.postgresql.ds.PGConnectionPoolDataSource;

/** What a follower does, and a worker that is superseded. */
final class Roles {
  private Roles() {}

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
    private final PGConnectionPoolDataSource source = new PGConnectionPoolDataSource();
    private PooledConnection pooled;
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
      pooled.addConnectionEventListener(new ConnectionEventListener() {
        public void connectionClosed(ConnectionEvent e) {}

        public void connectionErrorOccurred(ConnectionEvent e) {
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
