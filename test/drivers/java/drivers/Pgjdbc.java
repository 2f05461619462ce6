package drivers;

/** The driver pgjdbc: Pgjdbc scenarios|follower|stale|stale_transaction. See the Go package above for what it does. */
public final class Pgjdbc {
  public static void main(String[] args) throws Exception {
    switch (args[0]) {
      case "scenarios" -> Leader.scenarios();
      case "follower" -> Roles.follower();
      case "stale", "stale_transaction" -> Roles.stale(args[0]);
      default -> throw new IllegalArgumentException(args[0]);
    }
  }
}
