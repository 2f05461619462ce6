// Package completion writes the scripts by which shells complete the commands and flags of
// a program.
package completion

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

// Program is what can be completed.
type Program struct {
	Name     string
	Commands []Command
}

// Command is a command, or one action of a command that has several.
type Command struct {
	Name    string
	Action  string // "" if the command has no actions
	Summary string
	Flags   []Flag
}

// Flag is a flag of a command.
type Flag struct {
	Name, Usage string
	Value       string // what its value is called; "" if it takes none
}

// Flags returns the flags of a flag set.
func Flags(fs *flag.FlagSet) (flags []Flag) {
	fs.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if b, ok := f.Value.(interface{ IsBoolFlag() bool }); ok && b.IsBoolFlag() {
			value = ""
		}
		flags = append(flags, Flag{Name: f.Name, Usage: usage, Value: value})
	})
	return flags
}

// files reports whether the flag's value is the name of a file.
func (f Flag) files() bool { return slices.Contains([]string{"file", "directory", "path"}, f.Value) }

// shells writes the script for each shell.
var shells = map[string]func(p Program) string{"bash": bash, "zsh": zsh, "fish": fish}

// Shells are the shells that are known.
func Shells() []string { return []string{"bash", "zsh", "fish"} }

// Script returns the script for a shell. ok is false if the shell is not known.
func Script(shell string, p Program) (script string, ok bool) {
	write, ok := shells[shell]
	if !ok {
		return "", false
	}
	return write(p), true
}

// names are the names of the commands, each once.
func (p Program) names() []string {
	var names []string
	for _, c := range p.Commands {
		names = append(names, c.Name)
	}
	return slices.Compact(names)
}

// actions are the actions of a command.
func (p Program) actions(name string) []string {
	var actions []string
	for _, c := range p.Commands {
		if c.Name == name && c.Action != "" {
			actions = append(actions, c.Action)
		}
	}
	return actions
}

// flags are the flags that match, as words of the command line.
func flags(list []Flag, match func(Flag) bool) string {
	var words []string
	for _, f := range list {
		if match(f) {
			words = append(words, "--"+f.Name)
		}
	}
	return strings.Join(words, " ")
}

func bash(p Program) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Completion of %[1]s for bash. To use it now: source <(%[1]s completion bash)
_%[1]s() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} action='' words='' files='' values=''
    COMPREPLY=()
    [[ $cur == '=' ]] && cur=''
    [[ $prev == '=' ]] && prev=${COMP_WORDS[COMP_CWORD-2]}
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '%[2]s help' -- "$cur"))
        return
    fi
    ((COMP_CWORD > 2)) && action=${COMP_WORDS[2]}
    case "${COMP_WORDS[1]} $action" in
`, p.Name, strings.Join(p.names(), " "))
	for i, c := range p.Commands {
		pattern := fmt.Sprintf("'%s '*", c.Name)
		if c.Action != "" {
			pattern = fmt.Sprintf("'%s %s'", c.Name, c.Action)
		}
		all := flags(c.Flags, func(Flag) bool { return true })
		fmt.Fprintf(&b, "        %s) words='%s' files='%s' values='%s' ;;\n", pattern, strings.TrimSpace(all+" --help"), flags(c.Flags, Flag.files),
			flags(c.Flags, func(f Flag) bool { return f.Value != "" && !f.files() }))
		if last := i+1 == len(p.Commands) || p.Commands[i+1].Name != c.Name; last && c.Action != "" {
			fmt.Fprintf(&b, "        '%s '*) words='%s --help' ;;\n", c.Name, strings.Join(p.actions(c.Name), " "))
		}
	}
	fmt.Fprintf(&b, `        'help '*) words='%[2]s' ;;
    esac
    case " $values " in *" $prev "*) return ;; esac
    case " $files " in *" $prev "*)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _%[1]s %[1]s
`, p.Name, strings.Join(p.names(), " "))
	return b.String()
}

// zshText escapes a text in single quotes, in a specification of _arguments.
func zshText(s string) string {
	return strings.NewReplacer(`'`, `'\''`, `[`, `\[`, `]`, `\]`, `:`, `\:`).Replace(s)
}

func zsh(p Program) string {
	var b strings.Builder
	fmt.Fprintf(&b, `#compdef %[1]s
# Completion of %[1]s for zsh. Write it to a file _%[1]s in a directory of $fpath.
_%[1]s() {
    local -a commands
    commands=(
`, p.Name)
	said := ""
	for _, c := range p.Commands {
		if c.Name != said {
			fmt.Fprintf(&b, "        '%s:%s'\n", c.Name, zshText(c.Summary))
			said = c.Name
		}
	}
	b.WriteString(`        'help:show the usage of a command'
    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    local action=''
    ((CURRENT > 3)) && action=${words[3]}
    case "${words[2]} $action" in
`)
	for i, c := range p.Commands {
		pattern, skip := fmt.Sprintf("'%s '*", c.Name), 1
		if c.Action != "" {
			pattern, skip = fmt.Sprintf("'%s %s'", c.Name, c.Action), 2
		}
		fmt.Fprintf(&b, "        %s)\n            shift %d words; ((CURRENT -= %d))\n            _arguments", pattern, skip, skip)
		for _, f := range c.Flags {
			spec := fmt.Sprintf("--%s[%s]", f.Name, zshText(f.Usage))
			switch {
			case f.files():
				spec += ":" + f.Value + ":_files"
			case f.Value != "":
				spec += ":" + zshText(f.Value) + ": "
			}
			fmt.Fprintf(&b, " \\\n                '%s'", spec)
		}
		// The last specification allows arguments, which are not completed.
		b.WriteString(" \\\n                '--help[show the usage]' '*: : ' ;;\n")
		if last := i+1 == len(p.Commands) || p.Commands[i+1].Name != c.Name; last && c.Action != "" {
			fmt.Fprintf(&b, "        '%s '*) compadd -- %s --help ;;\n", c.Name, strings.Join(p.actions(c.Name), " "))
		}
	}
	fmt.Fprintf(&b, "        'help '*) compadd -- %[2]s ;;\n    esac\n}\n_%[1]s \"$@\"\n", p.Name, strings.Join(p.names(), " "))
	return b.String()
}

// fishText quotes a text for fish.
func fishText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func fish(p Program) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Completion of %[1]s for fish. Write it to ~/.config/fish/completions/%[1]s.fish.\ncomplete -c %[1]s -f\n", p.Name)
	said := ""
	for _, c := range p.Commands {
		in := "__fish_seen_subcommand_from " + c.Name
		if c.Name != said {
			said = c.Name
			fmt.Fprintf(&b, "complete -c %s -n __fish_use_subcommand -a %s -d %s\n", p.Name, c.Name, fishText(c.Summary))
			if actions := p.actions(c.Name); len(actions) > 0 {
				all := strings.Join(actions, " ")
				fmt.Fprintf(&b, "complete -c %s -n '%s; and not __fish_seen_subcommand_from %s' -a '%s'\n", p.Name, in, all, all)
			}
		}
		if c.Action != "" {
			in += "; and __fish_seen_subcommand_from " + c.Action
		}
		for _, f := range c.Flags {
			fmt.Fprintf(&b, "complete -c %s -n '%s' -l %s -d %s", p.Name, in, f.Name, fishText(f.Usage))
			switch {
			case f.files():
				b.WriteString(" -r -F")
			case f.Value != "":
				b.WriteString(" -x")
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
