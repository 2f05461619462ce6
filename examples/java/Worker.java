import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;

/**
 * An example worker that uses pgjdbc. It waits until it is the leader, then writes once a
 * second. After a refused write it starts again from the read.
 *
 * <p>WORKER is its name, and RESOURCE what it wants to write (default: billing). PGHOST, PGPORT,
 * PGUSER, PGPASSWORD and PGDATABASE give the address of Fencepost.
 *
 * <p>Run it with: java -cp postgresql.jar Worker.java
 */
public class Worker {
    static final Map<String, String> ENV = System.getenv();
    static final String NAME = ENV.get("WORKER");
    static final String RESOURCE = ENV.getOrDefault("RESOURCE", "billing");
    // It differs each time the process starts. All connections of the process share it.
    static final String WORKER_ID =
        NAME + ":" + ProcessHandle.current().pid() + ":" + UUID.randomUUID().toString().substring(0, 8);

    // ZF002: not the leader. ZF003: the leader again, and its connection did not know yet.
    // 40001: the snapshot is older than the lead. The connection remains usable after each.
    static final Set<String> START_AGAIN = Set.of("ZF002", "ZF003", "40001");

    /** Returns a connection as soon as this worker is the leader. */
    static Connection connect() throws SQLException {
        say("%s: connecting, and waiting to lead", NAME);
        String port = ENV.getOrDefault("PGPORT", "6432");
        // Several hosts, as in PGHOST=one,two: the driver takes the first that it can connect to.
        String hosts = Arrays.stream(ENV.getOrDefault("PGHOST", "127.0.0.1").split(","))
            .map(host -> host + ":" + port).collect(Collectors.joining(","));
        Properties settings = new Properties();
        settings.setProperty("user", ENV.get("PGUSER"));
        settings.setProperty("password", ENV.getOrDefault("PGPASSWORD", ""));
        settings.setProperty("options", "-c fencepost.resource=" + RESOURCE
            + " -c fencepost.worker=" + WORKER_ID + " -c fencepost.campaign=wait");
        Connection connection = DriverManager.getConnection("jdbc:postgresql://" + hosts + "/" + ENV.get("PGDATABASE"), settings);
        connection.setAutoCommit(false);
        say("%s leads and writes once a second", NAME);
        return connection;
    }

    /** One piece of work: what it writes depends only on what it reads here. */
    static void work(Connection connection) throws SQLException {
        long others = number(connection, "SELECT count(*) FROM charges");
        long row = number(connection, "INSERT INTO charges (worker) VALUES (?) RETURNING id", NAME);
        connection.commit();
        say("%s wrote row %d, after %d others", NAME, row, others);
    }

    static long number(Connection connection, String sql, String... parameters) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < parameters.length; i++) {
                statement.setString(i + 1, parameters[i]);
            }
            try (ResultSet result = statement.executeQuery()) {
                result.next();
                return result.getLong(1);
            }
        }
    }

    /** Works until an error ends the connection. */
    static void lead(Connection connection) throws SQLException, InterruptedException {
        while (true) {
            try {
                work(connection);
            } catch (SQLException error) {
                if (!START_AGAIN.contains(error.getSQLState())) {
                    throw error;
                }
                say("%s: %s: %s", NAME, error.getSQLState(), error.getMessage());
                connection.rollback();
            }
            Thread.sleep(1000);
        }
    }

    static void say(String format, Object... values) {
        System.out.println(String.format(format, values));
    }

    public static void main(String[] args) throws InterruptedException {
        while (true) {
            try (Connection connection = connect()) {
                lead(connection);
            } catch (SQLException error) {
                // ZF001: another worker leads. Anything else: the connection broke, or was refused.
                say("%s: connection closed: %s: %s", NAME, error.getSQLState(), error.getMessage());
            }
            Thread.sleep(1000);
        }
    }
}
