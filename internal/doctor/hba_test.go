package doctor

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rule reads a line of pg_hba.conf whose fields are separated by spaces.
func rule(line string) Rule {
	fields := strings.Fields(line)
	r := Rule{Type: fields[0], Databases: strings.Split(fields[1], ","), Users: strings.Split(fields[2], ",")}
	fields = fields[3:]
	if r.Type != "local" {
		address, bits, masked := strings.Cut(fields[0], "/")
		r.Address, fields = address, fields[1:]
		if masked {
			r.Mask = map[string]string{"32": "255.255.255.255", "24": "255.255.255.0", "8": "255.0.0.0", "0": "0.0.0.0",
				"128": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "64": "ffff:ffff:ffff:ffff::"}[bits]
			if strings.Contains(address, ":") && bits == "0" {
				r.Mask = "::"
			}
		}
	}
	r.Method, r.Options = fields[0], fields[1:]
	return r
}

func TestWhoGetsAroundTheProxy(t *testing.T) {
	t.Parallel()
	app := Role{Name: "app", Groups: []string{"workers", "shop"}}
	for _, c := range []struct {
		rules string
		role  Role
		want  []int
	}{
		{"host all all 0.0.0.0/0 md5", app, []int{0}},
		{"host all all all md5", app, []int{0}},
		{"host all all samenet md5", app, []int{0}},
		{"host all all .example.org md5", app, []int{0}},
		{"host all all 10.1.2.0/24 md5", app, []int{0}},
		{"host all all ::/0 md5", app, []int{0}},
		{"host all all fd00::/64 md5", app, []int{0}},
		{"host all all 10.1.2.3/32 md5", app, nil},
		{"host all all fd00::1/128 md5", app, nil},
		{"host all all proxy.example.org md5", app, nil},
		{"host all all samehost md5", app, nil},
		{"host all all 127.0.0.0/8 trust", app, nil},
		{"host all all 127.0.0.1/0 trust", app, []int{0}},
		{"local all all trust", app, nil},
		{"hostssl all all all cert", app, nil},
		{"hostssl all all all md5 clientcert=verify-ca", app, nil},
		{"host other all all md5", app, nil},
		{"host replication all all md5", app, nil},
		{"host shop other all md5", app, nil},
		{"host shop app,other all md5", app, []int{0}},
		{"host shop +workers all md5", app, []int{0}},
		{"host shop +app all md5", app, []int{0}},
		{"host shop +others all md5", app, nil},
		{"host sameuser all all md5", app, nil},
		{"host sameuser all all md5", Role{Name: "shop"}, []int{0}},
		{"host samerole all all md5", app, []int{0}},
		{"host /^sh all all md5", app, []int{0}},
		{"host /^x all all md5", app, nil},
		{"host all /^a.p$ all md5", app, []int{0}},
		{"host all all all reject;host all all 0.0.0.0/0 md5", app, nil},
		{"host all all 0.0.0.0/0 reject;host all all 10.0.0.0/8 md5", app, nil},
		{"host all all 10.0.0.0/24 reject;host all all 10.0.0.0/8 md5", app, []int{1}},
		{"host all all 0.0.0.0/0 reject;host all all ::/0 md5", app, []int{1}},
		{"hostnossl all all all reject;host all all all md5", app, []int{1}},
		{"hostnossl all all all reject;hostnossl all all all md5", app, nil},
		{"host all other all reject;host all all all md5", app, []int{1}},
		{"host all app 10.0.0.5/32 md5;host all all 0.0.0.0/0 reject", app, nil},
		{"host all all all md5;host all app all md5", app, []int{0}},
	} {
		var rules []Rule
		for _, line := range strings.Split(c.rules, ";") {
			rules = append(rules, rule(line))
		}
		if got := open(rules, "shop", c.role); !slices.Equal(got, c.want) {
			t.Errorf("%s (role %s): the rules %v let it in, want %v", c.rules, c.role.Name, got, c.want)
		}
	}
}

// TestAWayAroundNamesRuleAndRoles: one finding for each rule.
func TestAWayAroundNamesRuleAndRoles(t *testing.T) {
	t.Parallel()
	var rules []Rule
	for i, line := range []string{"host all app 10.0.0.0/8 md5", "host all all 0.0.0.0/0 md5"} {
		r := rule(line)
		r.Line = 90 + i
		rules = append(rules, r)
	}
	var f findings
	f.ways(Database{Name: "shop", Roles: []Role{{Name: "app", Writes: "t"}, {Name: "biller", Writes: "t"}, {Name: "reader"}}}, rules)
	if len(f.list) != 2 {
		t.Fatalf("%d findings: %+v", len(f.list), f.list)
	}
	for i, want := range [][]string{{"line 90", "10.0.0.0/8: app"}, {"line 91", "anywhere", ": app, biller"}} {
		for _, text := range want {
			if !strings.Contains(f.list[i].Seen, text) {
				t.Errorf("finding %s does not contain %q: %s", strconv.Itoa(i), text, f.list[i].Seen)
			}
		}
	}
}
