package config

// Consul configures the provider "consul".
type Consul struct {
	Address    string `yaml:"address"`
	Scheme     string `yaml:"scheme"`
	Prefix     string `yaml:"prefix"`
	Token      string `yaml:"token"`
	CAFile     string `yaml:"ca_file"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"`
}

var defaultConsul = Consul{Address: "127.0.0.1:8500", Scheme: "http", Prefix: "fencepost"}

// Validate checks the settings of the provider "consul".
func (c *Consul) Validate(fault Fault) {
	checkAddress(fault, "election.consul.address", c.Address)
	checkWord(fault, "election.consul.scheme", c.Scheme, "http", "https")
	checkPrefix(fault, "election.consul.prefix", c.Prefix)
	checkKeyPair(fault, "election.consul", c.CertFile, c.KeyFile)
	if c.Scheme == "http" && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		fault("election.consul has TLS settings, but scheme is http: set scheme: https, or remove them")
	}
}
