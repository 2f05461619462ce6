package drivers;

import static drivers.Lines.*;

import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;

/** The console, by pgjdbc. */
final class Console {
  private Console() {}

  public static void main(String[] args) {
    report("console", Console::look);
  }

  static Outcome look() throws SQLException {
    var source = Db.source();
    source.setPassword(System.getenv("PGPASSWORD"));
    try (Connection c = source.getConnection()) {
      List<Object> leaders = List.of();
      c.setAutoCommit(false); // so that the driver sends BEGIN, and reads in parts
      try (var s = c.prepareStatement("SHOW LEADERS")) {
        s.setFetchSize(1);
        for (int i = 0; i < 10; i++) { // from the fifth time on, the server keeps it
          try (ResultSet r = s.executeQuery()) {
            leaders = new ArrayList<>();
            while (r.next()) {
              if (r.getString("database").equals(System.getenv("LED"))) {
                leaders.add(List.of(r.getString("resource"), r.getString("leader"), r.getString("epoch")));
              }
            }
          }
        }
      }
      c.commit();
      String refused = "";
      try {
        Db.run(c, "SHOW nothing");
      } catch (SQLException e) {
        refused = e.getSQLState();
      }
      c.rollback();
      c.setAutoCommit(true);
      String ping = "";
      try (var s = c.createStatement(); ResultSet r = s.executeQuery("SELECT 1")) {
        r.next();
        ping = r.getString(1);
      }
      return new Outcome(map("leaders", leaders, "refused", refused, "ping", c.isValid(10) ? ping : "invalid"), null);
    }
  }
}
