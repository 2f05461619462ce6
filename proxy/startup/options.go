package startup

import (
	"strings"
)

// splitOptions removes the settings for whose name wanted is true from the startup parameter `options`. It
// reads the parameter as PostgreSQL's pg_split_opts does: white space separates words, a backslash escapes the
// next byte, and a setting has the form -c name=value, -cname=value or --name=value, perhaps after other
// switches, as in -ec name=value. removed is name, value, …; kept is the rest, with its bytes unchanged.
func splitOptions(options string, wanted func(name string) bool) (kept string, removed []string) {
	words := optionWords(options)
	var keep []string
	for i := 0; i < len(words); i++ {
		before, setting, used := settingIn(words[i:])
		name, value, ok := strings.Cut(setting, "=")
		name = strings.ReplaceAll(name, "-", "_") // as PostgreSQL reads --name
		if ok && wanted(name) {
			removed = append(removed, name, value)
			if before != "" {
				keep = append(keep, before)
			}
		} else {
			for _, w := range words[i : i+used] {
				keep = append(keep, w.raw)
			}
		}
		i += used - 1
	}
	if len(removed) == 0 {
		return options, nil
	}
	return strings.Join(keep, " "), removed
}

// The switches of a server process that take no argument, and those that do. process_postgres_switches
// has them, in all supported versions.
const (
	switches             = "EFOPTbeijlns"
	switchesWithArgument = "BCDNSWcdfhkprtv-"
)

// settingIn returns the setting that begins in the first of the words, "" if there is none, and how many
// words are used. It reads them as getopt does: several switches may share a word, and the argument of
// the last is the rest of the word, or the next word. before are the switches before the setting.
func settingIn(words []optionWord) (before, setting string, used int) {
	text := words[0].text
	switch {
	case text == "--": // nothing after it is a switch
		return "", "", len(words)
	case len(text) < 2 || text[0] != '-':
		return "", "", 1
	}
	at := 1
	for at < len(text) && strings.IndexByte(switches, text[at]) >= 0 {
		at++
	}
	if at == len(text) || strings.IndexByte(switchesWithArgument, text[at]) < 0 {
		return "", "", 1
	}
	argument, used := text[at+1:], 1
	if argument == "" && len(words) > 1 {
		argument, used = words[1].text, 2
	}
	if text[at] != 'c' && text[at] != '-' {
		return "", "", used
	}
	if at > 1 {
		before = text[:at]
	}
	return before, argument, used
}

// optionWord is a word of the parameter options, as it was sent and without its escapes.
type optionWord struct{ raw, text string }

// optionWords splits the parameter options.
func optionWords(s string) []optionWord {
	var words []optionWord
	for i := 0; i < len(s); {
		if isOptionSpace(s[i]) {
			i++
			continue
		}
		start := i
		var text strings.Builder
		for i < len(s) && !isOptionSpace(s[i]) {
			if s[i] == '\\' && i+1 < len(s) {
				i++
			}
			text.WriteByte(s[i])
			i++
		}
		words = append(words, optionWord{raw: s[start:i], text: text.String()})
	}
	return words
}

func isOptionSpace(c byte) bool { return strings.IndexByte(" \t\n\v\f\r", c) >= 0 }
