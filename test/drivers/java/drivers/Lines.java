package drivers;

import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The lines that a part prints. */
final class Lines {
  static final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  private Lines() {}

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
      return "[" + String.join(",", l.stream().map(Lines::json).toList()) + "]";
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
      e.printStackTrace(new PrintWriter(trace));
      line.put("failed", trace.toString());
    }
    out.println(json(line));
  }
}
