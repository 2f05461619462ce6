package drivers;

import static drivers.Lines.*;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;

/** The pool HikariCP, with pgjdbc: Hikari pool. See the Go package above for what it does. */
public final class Hikari {
  private static volatile boolean silent;

  public static void main(String[] args) throws Exception {
    var config = new HikariConfig();
    config.setDataSource(Db.source());
    config.setMaximumPoolSize(3);
    var pool = new HikariDataSource(config);
    for (int i = 0; i < 3; i++) {
      new Thread(() -> work(pool)).start();
    }
    // Each line makes it silent, or ends the silence.
    for (int c; (c = System.in.read()) >= 0; ) {
      if (c == '\n') {
        silent = !silent;
      }
    }
  }

  private static void work(HikariDataSource pool) {
    try {
      for (;; Thread.sleep(50)) {
        if (!silent) {
          out.println(json(map("scenario", "insert", "result", insert(pool))));
        }
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private static String insert(HikariDataSource pool) {
    try (Connection c = pool.getConnection();
        PreparedStatement s = c.prepareStatement("INSERT INTO work (what) VALUES (?)")) {
      s.setString(1, "HikariCP");
      s.executeUpdate();
      return "ok";
    } catch (SQLException e) {
      return Db.state(e);
    }
  }
}
