package startup

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

func TestSplitOptionsTakesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		options, kept string
		own           []string
	}{
		{"", "", nil},
		{"-c work_mem=5MB", "-c work_mem=5MB", nil},
		{"  -c   work_mem=5MB  ", "  -c   work_mem=5MB  ", nil}, // untouched, blanks and all
		{"-c fencepost.resource=billing", "", []string{"fencepost.resource", "billing"}},
		{"-cfencepost.resource=billing", "", []string{"fencepost.resource", "billing"}},
		{"--fencepost.resource=billing", "", []string{"fencepost.resource", "billing"}},
		{"--fencepost.worker-timeout=3s", "", []string{"fencepost.worker_timeout", "3s"}},
		{"-c FencePost.Resource=Billing", "", []string{"FencePost.Resource", "Billing"}},
		{"-c a.b=1 -c fencepost.worker=w -c c.d=2", "-c a.b=1 -c c.d=2", []string{"fencepost.worker", "w"}},
		{"-c fencepost.resource=a -c fencepost.worker=b", "", []string{"fencepost.resource", "a", "fencepost.worker", "b"}},
		{`-c application_name=two\ words -c fencepost.worker=a\ b\\c`, `-c application_name=two\ words`, []string{"fencepost.worker", `a b\c`}},
		{"-c\tfencepost.worker=w\n-c\vx.y=1", "-c x.y=1", []string{"fencepost.worker", "w"}},
		{"-c fencepost.worker=", "", []string{"fencepost.worker", ""}},
		{"-c fencepost.worker=a=b", "", []string{"fencepost.worker", "a=b"}},
		{"-c fencepost.worker", "-c fencepost.worker", nil}, // no value: the server says what it thinks of it
		{"-c", "-c", nil},
		{"-c -c fencepost.worker=w", "-c -c fencepost.worker=w", nil}, // "-c" is the first one's argument, as getopt reads it
		{"-ec fencepost.resource=billing", "-e", []string{"fencepost.resource", "billing"}},
		{"-eFcfencepost.resource=billing -c a.b=1", "-eF -c a.b=1", []string{"fencepost.resource", "billing"}},
		{"-e-fencepost.resource=billing", "-e", []string{"fencepost.resource", "billing"}},
		{"-ec work_mem=5MB", "-ec work_mem=5MB", nil},
		{"-S -c fencepost.worker=w", "-S -c fencepost.worker=w", nil}, // "-c" is an argument, too
		{"-eS64 -c fencepost.worker=w", "-eS64", []string{"fencepost.worker", "w"}},
		{"-zc fencepost.worker=w", "-zc fencepost.worker=w", nil},     // there is no -z: the server says so
		{"-- -c fencepost.worker=w", "-- -c fencepost.worker=w", nil}, // this is no switch
		{"x -c fencepost.worker=w", "x", []string{"fencepost.worker", "w"}},
		{"-c fencepostx.worker=w", "-c fencepostx.worker=w", nil},
		{`trailing\`, `trailing\`, nil},
	} {
		kept, own := splitOptions(c.options, isOwn)
		if kept != c.kept || !reflect.DeepEqual(own, c.own) {
			t.Errorf("splitOptions(%q) = %q, %q; want %q, %q", c.options, kept, own, c.kept, c.own)
		}
	}
}

// startupBody is the body of a startup packet.
func startupBody(params ...string) []byte {
	return wire.AppendStartup(nil, 3<<16, params)[8:]
}

func TestParseStartup(t *testing.T) {
	t.Parallel()
	s, err := parseStartup(3<<16, startupBody("user", "ann", "options", "-c fencepost.resource=r -c a.b=1",
		"fencepost.worker", "w", "FENCEPOST.CAMPAIGN", "wait", "fencepost.worker_timeout", "1m30s", "fencepost.heartbeat", "1500ms", "application_name", "x", "replication", "off"))
	if err != nil {
		t.Fatal(err)
	}
	want := Own{Resource: "r", Worker: "w", Campaign: fencing.CampaignWait, campaigns: true, WorkerTimeout: 90 * time.Second, Heartbeat: 1500 * time.Millisecond}
	if s.User != "ann" || s.Database != "ann" || s.Own != want {
		t.Errorf("user %q, database %q, own %+v; want ann, ann, %+v", s.User, s.Database, s.Own, want)
	}
	if want := []string{"user", "ann", "options", "-c a.b=1", "application_name", "x", "replication", "off"}; !reflect.DeepEqual(s.Params, want) {
		t.Errorf("the server gets %q, want %q", s.Params, want)
	}
	s, err = parseStartup(3<<16, startupBody("user", "ann", "database", "db", "fencepost.resource", "r", "fencepost.worker_timeout", "0"))
	if err != nil || s.Database != "db" || s.Own.WorkerTimeout != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	s, err = parseStartup(3<<16, startupBody("user", "ann", "database", ""))
	if err != nil || s.Database != "ann" || s.Own.WorkerTimeout >= 0 {
		t.Errorf("an empty database is the user's name, and no timeout the default: %+v, %v", s, err)
	}
	most := strings.Repeat("n", 62) + "\xc3"
	s, err = parseStartup(3<<16, startupBody("user", most+"\xa9", "database", most+"db"))
	if err != nil || s.User != most || s.Database != most {
		t.Errorf("long names are cut at 63 bytes: %+v, %v", s, err)
	} else if want := []string{"user", most + "\xa9", "database", most + "db"}; !reflect.DeepEqual(s.Params, want) {
		t.Errorf("the server gets %q, want %q", s.Params, want)
	}
}

func TestParseStartupRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", fencing.MaxName+1)
	for name, c := range map[string]struct {
		body  []byte
		state string
		says  string
	}{
		"nothing at all":           {nil, "08P01", "terminator"},
		"no terminator":            {[]byte("user\x00ann\x00"), "08P01", "terminator"},
		"a name without a value":   {[]byte("user\x00"), "08P01", "terminator"},
		"an open value":            {[]byte("user\x00ann"), "08P01", "terminator"},
		"bytes behind the end":     {append(startupBody("user", "ann"), 'x'), "08P01", "terminator"},
		"no user":                  {startupBody("database", "db"), "28000", "user name"},
		"an empty user":            {startupBody("user", ""), "28000", "user name"},
		"replication":              {startupBody("user", "ann", "replication", "true"), "ZF005", "replication"},
		"logical replication":      {startupBody("user", "ann", "replication", "database"), "ZF005", "replication"},
		"an empty resource":        {startupBody("user", "ann", "fencepost.resource", ""), "22023", "fencepost.resource"},
		"a long worker":            {startupBody("user", "ann", "fencepost.worker", long), "22023", "fencepost.worker"},
		"an odd replication":       {startupBody("user", "ann", "replication", "maybe"), "22023", "\"replication\""},
		"a resource not in UTF-8":  {startupBody("user", "ann", "fencepost.resource", "r\xff"), "22023", "fencepost.resource"},
		"a wrong campaign":         {startupBody("user", "ann", "fencepost.campaign", "maybe"), "22023", "fencepost.campaign"},
		"a name of several lines":  {startupBody("user", "ann", "fencepost.worker", "w\nshop/billing"), "22023", "fencepost.worker"},
		"a wrong timeout":          {startupBody("user", "ann", "fencepost.worker_timeout", "soon"), "22023", "fencepost.worker_timeout"},
		"a negative timeout":       {startupBody("user", "ann", "fencepost.worker_timeout", "-1s"), "22023", "fencepost.worker_timeout"},
		"a wrong heartbeat":        {startupBody("user", "ann", "fencepost.heartbeat", "often"), "22023", "fencepost.heartbeat"},
		"a heartbeat without unit": {startupBody("user", "ann", "fencepost.heartbeat", "1"), "22023", "fencepost.heartbeat"},
		"a negative heartbeat":     {startupBody("user", "ann", "fencepost.heartbeat", "-1s"), "22023", "fencepost.heartbeat"},
		"a heartbeat only":         {startupBody("user", "ann", "fencepost.heartbeat", "1s"), "22023", "fencepost.heartbeat is set"},
		"a worker only":            {startupBody("user", "ann", "fencepost.worker", "w"), "22023", "fencepost.worker is set, but fencepost.resource is not"},
		"a campaign only":          {startupBody("user", "ann", "options", "-c fencepost.campaign=wait"), "22023", "fencepost.campaign is set"},
		"a timeout only":           {startupBody("user", "ann", "fencepost.worker_timeout", "0"), "22023", "fencepost.worker_timeout is set"},
		"a token only":             {startupBody("user", "ann", "fencepost.token", "42"), "22023", "fencepost.token is set"},
		"a token of 0":             {startupBody("user", "ann", "fencepost.resource", "r", "fencepost.token", "0"), "22023", "fencepost.token"},
		"a token that is too long": {startupBody("user", "ann", "fencepost.resource", "r", "fencepost.token", "9223372036854775808"), "22023", "fencepost.token"},
		"an unknown parameter":     {startupBody("user", "ann", "fencepost.colour", "red"), "22023", "fencepost.colour"},
		"an unknown one by option": {startupBody("user", "ann", "options", "-c fencepost.colour=red"), "22023", "fencepost.colour"},
	} {
		s, err := parseStartup(3<<16, c.body)
		if err == nil {
			err = s.Own.Validate()
		}
		var r *fencing.Refusal
		if !errors.As(err, &r) || r.SQLState != c.state || !strings.Contains(r.Message, c.says) {
			t.Errorf("%s: %v, want %s and %q", name, err, c.state, c.says)
		}
		if ofPostgres := c.says == "terminator" || c.says == "user name" || c.says == `"replication"`; r != nil && (r.Text() == r.Message) != ofPostgres {
			t.Errorf("%s: the client gets %q", name, r.Text())
		}
		if c.state == "22023" && (r == nil || r.Hint == "") {
			t.Errorf("%s: no hint", name)
		}
	}
}

// TestARouteFillsWhatTheClientLeavesOpen: what the client names itself comes first.
func TestARouteFillsWhatTheClientLeavesOpen(t *testing.T) {
	t.Parallel()
	named := Own{Resource: "r", Worker: "w", Campaign: fencing.CampaignWait, WorkerTimeout: -1}
	own := func(change func(*Own)) Own { o := named; change(&o); return o }
	for name, c := range map[string]struct {
		params []string
		route  bool
		want   Own
		state  string
	}{
		"nothing":                               {nil, true, named, ""},
		"a worker":                              {[]string{"fencepost.worker", "mine"}, true, own(func(o *Own) { o.Worker = "mine" }), ""},
		"its default campaign":                  {[]string{"fencepost.campaign", "on"}, true, own(func(o *Own) { o.Campaign, o.campaigns = fencing.CampaignOn, true }), ""},
		"a timeout":                             {[]string{"fencepost.worker_timeout", "0"}, true, own(func(o *Own) { o.WorkerTimeout = 0 }), ""},
		"a resource":                            {[]string{"fencepost.resource", "mine"}, true, Own{Resource: "mine", WorkerTimeout: -1}, ""},
		"nothing, without a route":              {nil, false, Own{WorkerTimeout: -1}, ""},
		"a worker, without a route":             {[]string{"fencepost.worker", "mine"}, false, Own{Worker: "mine", WorkerTimeout: -1}, "22023"},
		"the default campaign, without a route": {[]string{"fencepost.campaign", "on"}, false, Own{Campaign: fencing.CampaignOn, campaigns: true, WorkerTimeout: -1}, "22023"},
		"its campaign, without a route":         {[]string{"fencepost.campaign", "wait"}, false, Own{Campaign: fencing.CampaignWait, campaigns: true, WorkerTimeout: -1}, "22023"},
	} {
		s, err := parseStartup(3<<16, startupBody(append([]string{"user", "ann"}, c.params...)...))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.route {
			s.Own.ApplyRoute("r", "w", fencing.CampaignWait)
		}
		var r *fencing.Refusal
		if err = s.Own.Validate(); (err != nil) != (c.state != "") || err != nil && (!errors.As(err, &r) || r.SQLState != c.state) {
			t.Errorf("%s: %v, want %q", name, err, c.state)
		}
		if s.Own != c.want {
			t.Errorf("%s: %+v, want %+v", name, s.Own, c.want)
		}
	}
}
